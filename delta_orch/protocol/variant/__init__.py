"""Variants: semi-structured values, their binary form, and their shredded columns (variant-shredding; Variant binary
encoding).

One value:

    values                 the types of values, the classes of those that Python's own types cannot hold, and the
                           canonical JSON text of decoded values
    variant                `Variant`: a metadata/value pair with `type_name`, `get(path)`, `to_python()`, `to_json()`;
                           all lazy, and the decoder beneath it
    encode                 `encode_variant` from Python objects, `encode_scalar` of an exact type (`TypedValue`),
                           `parse_json` from JSON text

Columns, in Arrow and numpy, each module above those before it:

    byte_columns           byte strings that lie back to back, and Arrow's buffers
    layouts                headers of many values
    dictionaries           field names of many values, and the steps to their children
    convert                values of one type as Arrow arrays, and back
    json_columns           their canonical JSON text
    shredding              the shape of a shredded column
    reconstruct            `reconstruct_variant`: a shredded column becomes struct<metadata: binary, value: binary>;
                           `reconstruct_columns`: the same for variants anywhere inside a column of a Delta type
    extract                `variant_get`: what stands at a path, as a typed column, from the typed columns where it can
    shred                  `plan_shredding`, `shred_variants`: typed columns for a file

A row that is SQL NULL is a null of the struct; a variant that is null is a value like any other (one byte `00`).
Invalid input raises `InvalidVariantError`, in time and memory that grow only with the size of the input.
"""
