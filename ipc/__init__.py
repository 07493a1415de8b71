"""What carries requests: sockets, files, the command line. The only importer of zmq."""
