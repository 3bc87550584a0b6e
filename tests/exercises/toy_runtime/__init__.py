"""Runtime half of the toy family. Imports no torch."""
