"""Wire formats: text, HTTP and gRPC on one side, protocol records on the other."""
