"""Errors, shapes, environment, languages and the native library. Imports no other package of uwaga."""
