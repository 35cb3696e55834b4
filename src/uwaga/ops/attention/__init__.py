"""The operation. Read in this order: reference (what it means), spec, api, choose, schema, engines."""
