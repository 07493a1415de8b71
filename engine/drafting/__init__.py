"""What proposes drafts: the MTP head, a peer model, prompt lookup."""
