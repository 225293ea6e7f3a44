"""The audit log: an append-only Merkle log on disk, written durably and signed.

    journal/   records acknowledged since the last checkpoint (`journal`)
    tile/      records and hashes of everything signed (`tiles`)
    checkpoint the newest signed size and root

`log` writes it, `verify` checks it from files and a public key, `collector.commands.audit` is its command
line.
"""
