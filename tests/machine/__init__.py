"""The state machine: random histories of a store, compared with a plain model after every step."""
