"""What `uwaga.watch` records: copies of queries and keys, pass by pass, and how the passes of one text are joined."""
