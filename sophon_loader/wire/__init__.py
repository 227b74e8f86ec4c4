"""The wire protocol of docs/wire.md: versions, messages and frames. Bytes in, messages out; no sockets."""
