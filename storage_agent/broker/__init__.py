"""The agent's main loop: takes requests in, gives jobs out, hands replies on."""
