"""Variants: semi-structured values, their binary form, and their shredded columns (variant-shredding; Variant binary
encoding).

One value, without Arrow:

    variant.Variant        a metadata/value pair: `type_name`, `get(path)`, `to_python()`, `to_json()`, all lazy
    encode                 `encode_variant` from Python objects, `encode_scalar` of an exact type (`TypedValue`),
                           `parse_json` from JSON text
    json_text              the canonical JSON text of decoded values
    values                 the classes of values that Python's own types cannot hold

Columns, in Arrow:

    reconstruct            `reconstruct_variant`: a shredded column becomes struct<metadata: binary, value: binary>
    nested                 `reconstruct_columns`: the same for variants anywhere inside a column of a Delta type
    extract                `variant_get`: what stands at a path, as a typed column, from the typed columns where it can
    projection             `columns_of_path`, `null_columns`: which columns of a file such a path needs
    arrays                 `variant_to_json`, `variant_to_python`, `variants_to_arrow`, `json_to_variant`

A row that is SQL NULL is a null of the struct; a variant that is null is a value like any other (one byte `00`).
Whatever breaks the rules raises `InvalidVariantError`, in time and memory that grow with the size of the input only.
"""
