"""Several collectors with one database: collectors and a database server fail while a simulated cluster ships frames.

Afterwards the ledger is compared with that of one collector that received every frame.
"""
