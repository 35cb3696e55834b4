"""The server of `uwaga serve`: vectors and ranks of texts over HTTP, in the form of OpenAI's, Cohere's and Jina's interfaces."""
