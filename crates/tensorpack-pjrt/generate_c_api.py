#!/usr/bin/env python3
"""Generates src/c_api.rs from PJRT's C header.

    generate_c_api.py pjrt_c_api.h > src/c_api.rs && cargo fmt -p tensorpack-pjrt

The header is xla/pjrt/c/pjrt_c_api.h of the OpenXLA project; wheels of plugins carry it, too. Take the newest: a plugin
accepts structs that are longer than those it was built with, but not shorter ones. The output declares the whole table
of functions, and the argument structs of those in FUNCTIONS. Needs only Python's standard library.
"""

import re
import sys
import textwrap

# The functions that this crate calls. The rest of the table keeps its place, without types.
FUNCTIONS = """
    PJRT_Error_Destroy PJRT_Error_Message PJRT_Error_GetCode PJRT_Plugin_Initialize
    PJRT_Event_Destroy PJRT_Event_IsReady PJRT_Event_Error PJRT_Event_OnReady
    PJRT_Client_Create PJRT_Client_Destroy PJRT_Client_PlatformName PJRT_Client_PlatformVersion
    PJRT_Client_ProcessIndex PJRT_Client_Devices PJRT_Client_UpdateGlobalProcessInfo
    PJRT_Client_AddressableDevices PJRT_Client_Compile PJRT_Client_BufferFromHostBuffer
    PJRT_DeviceDescription_Id PJRT_DeviceDescription_ProcessIndex PJRT_DeviceDescription_Kind
    PJRT_DeviceDescription_ToString PJRT_Device_GetDescription PJRT_Device_IsAddressable PJRT_Device_MemoryStats
    PJRT_Executable_Destroy PJRT_Executable_NumOutputs PJRT_Executable_OutputElementTypes
    PJRT_Executable_OutputDimensions PJRT_Executable_GetCompiledMemoryStats
    PJRT_Executable_Serialize PJRT_Executable_DeserializeAndLoad
    PJRT_LoadedExecutable_Destroy PJRT_LoadedExecutable_GetExecutable PJRT_LoadedExecutable_AddressableDevices
    PJRT_LoadedExecutable_Execute
    PJRT_Buffer_Destroy PJRT_Buffer_ElementType PJRT_Buffer_Dimensions PJRT_Buffer_OnDeviceSizeInBytes
    PJRT_Buffer_IsDeleted PJRT_Buffer_CopyToDevice PJRT_Buffer_ToHostBuffer PJRT_Buffer_ReadyEvent
""".split()
# Structs that are passed by pointer and filled in here. Others that are only pointed to stay opaque.
STRUCTS = [
    "PJRT_NamedValue", "PJRT_Program", "PJRT_ExecuteOptions", "PJRT_Buffer_MemoryLayout", "PJRT_ProcessInfo",
    "PJRT_KeyValueGetCallback_Args", "PJRT_KeyValueTryGetCallback_Args", "PJRT_KeyValuePutCallback_Args",
]  # fmt: skip
# Function pointers that are passed. Others stay without types.
CALLBACKS = [
    "PJRT_Event_OnReadyCallback", "PJRT_CallbackError",
    "PJRT_KeyValueGetCallback", "PJRT_KeyValueTryGetCallback", "PJRT_KeyValuePutCallback",
    "PJRT_KeyValueGetCallback_ValueDeleter", "PJRT_KeyValueTryGetCallback_ValueDeleter",
]  # fmt: skip

SCALARS = {
    "size_t": "usize", "int": "c_int", "int32_t": "i32", "int64_t": "i64", "uint64_t": "u64",
    "bool": "bool", "char": "c_char", "float": "f32", "void": "c_void",
}  # fmt: skip


class Header:
    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        text = re.sub(r"//[^\n]*", "", text)
        self.version = tuple(int(re.search(rf"#define PJRT_API_{part} (\d+)", text)[1]) for part in ("MAJOR", "MINOR"))
        body = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
        self.structs = {m[1]: m[2] for m in re.finditer(rf"struct (PJRT_\w+) {body}", text)}
        self.enums = {m[2]: m[1] for m in re.finditer(r"typedef enum \{([^{}]*)\} (PJRT_\w+);", text)}
        self.functions = {m[2]: m[1] for m in re.finditer(r"typedef\s+([\w*]+)\s+(PJRT_\w+)\(", text)}
        callbacks = re.finditer(r"typedef\s+([\w*]+)\s+\(\*\s*(PJRT_\w+)\)\(([^)]*)\)", text)
        self.callbacks = {m[2]: (m[1], m[3]) for m in callbacks}
        self.callback_names = set(re.findall(r"\(\*\s*(PJRT_\w+)\)\(", text))
        self.table = re.findall(r"_PJRT_API_STRUCT_FIELD\(\s*(PJRT_\w+)\s*\);", self.structs["PJRT_Api"])
        fields = self.structs["PJRT_Api"].count(";")
        if len(self.table) != fields - 3 or not set(FUNCTIONS) <= set(self.table):
            sys.exit(f"PJRT_Api has {fields} fields, but {len(self.table)} functions were understood")

    def enumerators(self, name):
        value = -1
        for entry in filter(None, (e.strip() for e in self.enums[name].split(","))):
            entry, _, given = (part.strip() for part in entry.partition("="))
            value = int(given, 0) if given else value + 1
            yield entry, value

    def fields(self, name):
        """(field, declaration of its type); a list of such pairs for the members of a nameless union."""
        body = self.structs[name]
        for union, plain in re.findall(r"union \{([^{}]*)\};|([^;{}]+);", body):
            if plain:
                yield self.field(plain)
            else:
                yield "union", [self.field(member) for member in union.split(";") if member.strip()]

    @staticmethod
    def field(declaration):
        function = re.fullmatch(r"\s*void\s*\(\*(\w+)\)\((.*)\)\s*", declaration, flags=re.S)
        if function:
            return function[1], f"function({function[2]})"
        kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", declaration, flags=re.S).groups()
        return name, kind


class Output:
    def __init__(self, header):
        self.header = header
        self.lines, self.opaque, self.enums, self.done = [], set(), set(), []

    def rust_type(self, declaration):
        function = re.fullmatch(r"function\((.*)\)", declaration, flags=re.S)
        if function:
            arguments = ", ".join(self.argument_type(a) for a in function[1].split(","))
            return f'Option<unsafe extern "C" fn({arguments})>'
        tokens = re.findall(r"\w+|\*", declaration.replace("struct ", " "))
        base = next(t for t in tokens if t not in ("const", "*"))
        first_star = tokens.index("*") if "*" in tokens else len(tokens)
        constant = "const" in tokens[:first_star]
        kind = self.base_type(base, pointed_to=first_star < len(tokens))
        for at, token in enumerate(tokens):
            if token == "*":
                kind = ("*const " if constant else "*mut ") + kind
                constant = tokens[at + 1 : at + 2] == ["const"]
        return kind

    def argument_type(self, declaration):
        """The type of a callback's argument, whose name may be missing."""
        declaration = declaration.strip()
        return self.rust_type(declaration if declaration.endswith("*") else Header.field(declaration)[1])

    def base_type(self, name, pointed_to):
        if name in SCALARS:
            return SCALARS[name]
        if name in self.header.enums:
            self.enums.add(name)
            return name
        if name in CALLBACKS:
            return f"Option<{name}>"
        if name in self.header.callback_names:
            return "UntypedFunction"
        if pointed_to and name not in STRUCTS:
            self.opaque.add(name)
        else:
            self.struct(name)
        return name

    def struct(self, name):
        if name in self.done:
            return
        self.done.append(name)
        lines = [f"#[repr(C)] #[derive(Clone, Copy)] pub(crate) struct {name} {{"]
        for field, kind in self.header.fields(name):
            if isinstance(kind, list):
                union = f"{name}_Union"
                members = [f"pub(crate) {member}: {self.rust_type(of)}," for member, of in kind]
                self.lines += [f"#[repr(C)] #[derive(Clone, Copy)] pub(crate) union {union} {{", *members, "}", ""]
                kind = union
            else:
                kind = self.rust_type(kind)
            lines.append(f"pub(crate) {rust_name(field)}: {kind},")
        self.lines += [*lines, "}", ""]

    def table(self):
        lines = ["#[repr(C)] #[derive(Clone, Copy)] pub(crate) struct PJRT_Api {"]
        self.struct("PJRT_Api_Version")
        start = ["size_t struct_size", "PJRT_Extension_Base* extension_start", "PJRT_Api_Version pjrt_api_version"]
        for field, kind in map(self.header.field, start):
            lines.append(f"pub(crate) {field}: {self.rust_type(kind)},")
        for function in self.header.table:
            kind = "UntypedFunction"
            if function in FUNCTIONS:
                self.struct(f"{function}_Args")
                kind = "VoidFunction" if self.header.functions[function] == "void" else "Function"
                kind = f"{kind}<{function}_Args>"
            lines.append(f"pub(crate) {function}: {kind},")
        self.lines += [*lines, "}", ""]

    def layouts(self):
        """The fields of all structs, for the test that asks a C compiler for their offsets."""
        for name in self.done:
            fields, members = [], []
            for field, kind in self.header.fields(name):
                if isinstance(kind, list):
                    members = [member for member, _ in kind]
                else:
                    fields.append(rust_name(field))
            union = f" | {{ {', '.join(members)} }}" if members else ""
            yield from wrapped(f"{name} {{ {', '.join(fields)} }}{union}")
        yield from wrapped(f"PJRT_Api {{ struct_size, pjrt_api_version, {', '.join(self.header.table)} }}")

    def text(self):
        header = self.header
        for name in STRUCTS:
            self.struct(name)
        self.table()
        callbacks = []
        for name in CALLBACKS:
            returned, arguments = header.callbacks[name]
            arguments = [self.argument_type(a) for a in arguments.split(",")]
            returned = "" if returned == "void" else f" -> {self.rust_type(returned)}"
            callbacks.append(f'pub(crate) type {name} = unsafe extern "C" fn({", ".join(arguments)}){returned};')
        major, minor = header.version
        start = [
            "//! The C API of PJRT: the table of functions that a plugin exports, and their argument structs.",
            "//!",
            f"//! Generated by `generate_c_api.py` from `pjrt_c_api.h` of API {major}.{minor}; do not edit. A test of",
            "//! `c_struct.rs` compares sizes and offsets with what a C compiler makes of a header.",
            "",
            "#![allow(dead_code, non_camel_case_types, non_snake_case, non_upper_case_globals)]",
            "",
            "use crate::c_struct::{Function, UntypedFunction, VoidFunction, c_structs, opaque};",
            "use std::ffi::{c_char, c_int, c_void};",
            "",
            f"pub(crate) const PJRT_API_MAJOR: c_int = {major};",
            f"pub(crate) const PJRT_API_MINOR: c_int = {minor};",
            "",
        ]
        enums = []
        for name in sorted(self.enums):
            enums.append(f"pub(crate) type {name} = c_int;")
            enums += [f"pub(crate) const {e}: {name} = {value};" for e, value in header.enumerators(name)]
            enums.append("")
        layouts = ["#[cfg(test)]", "crate::c_struct::layouts! {", *self.layouts(), "}"]
        opaque = f"opaque!({', '.join(sorted(self.opaque - set(self.done)))});"
        sized = [name for name in self.done if "struct_size" in dict(header.fields(name))]
        structs = f"c_structs!({', '.join(sized + ['PJRT_Api'])});"
        return "\n".join([*start, *enums, opaque, "", *callbacks, "", *self.lines, structs, "", *layouts])


def wrapped(text):
    return textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="        ", break_long_words=False)


def rust_name(field):
    return "r#type" if field == "type" else field


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        print(Output(Header(f.read())).text())
