"""The linear map: residual + f(x W^T + b)."""
