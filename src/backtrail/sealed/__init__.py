"""Encryption at rest: a backend on top of another one that seals everything that users wrote.

`keys` has the caller's key, `keyring` the keys of a store, `cipher` the sealed bytes, `backend` the port.
docs/encryption.md says what is hidden and from whom; docs/format.md describes the bytes.
"""
