"""Runs bundles without torch: speech from text. Imports none of model, quantize, export."""
