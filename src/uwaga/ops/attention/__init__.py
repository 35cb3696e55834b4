"""The operation. Read in this order: reference (what it means), call, api, arguments, choose, autograd, operators, engines."""
