"""What a Recording is made of: copies of queries and keys, pass by pass, and how passes of one text are joined."""
