"""Variants for users: one value (`Variant`), and columns of them.

A scan gives a variant column as struct<metadata: binary, value: binary>, whichever way its files store it. Row null and
variant null are told apart: the former is a null of the struct, the latter a value. Bytes that break the rules of the
encoding raise `InvalidVariantError` (Variant binary encoding; PROTOCOL, "Variant Data Type").
"""

from __future__ import annotations

from delta_orch.protocol.variant.arrays import json_to_variant, variant_to_json, variant_to_python, variants_to_arrow
from delta_orch.protocol.variant.encode import encode_variant, parse_json
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.variant import Variant

__all__ = [
    "Variant",
    "encode_variant",
    "json_to_variant",
    "parse_json",
    "variant_get",
    "variant_to_json",
    "variant_to_python",
    "variants_to_arrow",
]
