"""A client that asks for endless answers, until it is killed."""

import sys

from ipc.client import Client

client = Client(sys.argv[1])
handles = [client.submit(f"victim {number}", {"max_tokens": 10**6}) for number in range(6)]
for handle in handles:
    handle.read_all()
print("asking", flush=True)
handles[0].result()
