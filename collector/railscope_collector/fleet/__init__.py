"""Fleet state: the latest value of every column of every node, schemas and layouts."""
