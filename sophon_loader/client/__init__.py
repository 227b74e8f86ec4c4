"""The loader's end of the wire: addresses, the connection, requests and their retries."""
