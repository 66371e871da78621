"""A candidate's source as HTML: escaped, with spans around comments, strings, numbers, keywords and types. C++, CUDA and Python."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from kernelwright.report.svg import visible

_KEYWORDS = (
    "alignas asm auto break case const constexpr continue default do else enum extern for goto if inline namespace noexcept operator "
    "private public register restrict return sizeof static static_assert static_cast reinterpret_cast struct switch template this "
    "typedef typename union using virtual volatile while "
    "and as assert class def del elif except finally from global import in is lambda not or pass raise try with yield True False None "
    "__global__ __device__ __host__ __shared__ __constant__ __restrict__ "
    "__launch_bounds__ __grid_constant__ __forceinline__ __cluster_dims__"
)
_TYPES = (
    "bool char double float half int long short signed size_t unsigned void ptrdiff_t float2 float4 int2 int4 uint4 dim3 "
    "__half __half2 __nv_bfloat16 __nv_bfloat162 CUtensorMap"
)


def _words(text: str) -> str:
    return "|".join(sorted(text.split(), key=len, reverse=True))


_COMMENT = {
    "c": r"//[^\n]*|/\*.*?(?:\*/|\Z)",
    "python": r"#[^\n]*",
}
_STRING = {
    "c": r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n]){1,4}\'',
    "python": r'"""(?:.*?)(?:"""|\Z)|\'\'\'(?:.*?)(?:\'\'\'|\Z)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
}
_SHARED = (
    rf"|(?P<k>\b(?:{_words(_KEYWORDS)})\b)"
    rf"|(?P<t>\b(?:{_words(_TYPES)}|u?int(?:8|16|32|64)_t|__m(?:128|256|512)\w?)\b)"
    r"|(?P<n>\b(?:0[xX][0-9a-fA-F']+|\d[\d']*(?:\.\d*)?(?:[eE][+-]?\d+)?)[uUlLfF]*\b)"
)
_TOKENS = {
    "c": re.compile(rf"(?P<c>{_COMMENT['c']})|(?P<s>{_STRING['c']})|(?P<p>^[ \t]*\#[ \t]*\w+)" + _SHARED, re.S | re.M),
    "python": re.compile(rf"(?P<c>{_COMMENT['python']})|(?P<s>{_STRING['python']})" + _SHARED, re.S | re.M),
}


def highlight(source: str, kind: str) -> Markup:
    """`kind` is the Candidate's: `cuda` and `cpu` read as C++, `python` as Python, others stay plain. Class names are one letter
    (comment, string, preprocessor, keyword, type, number), because a long kernel has thousands of spans."""
    text = visible(source)
    pattern = {"cuda": _TOKENS["c"], "cpu": _TOKENS["c"], "python": _TOKENS["python"]}.get(kind)
    if pattern is None:
        return escape(text)
    parts, end = [], 0
    for match in pattern.finditer(text):
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup("<i class={}>{}</i>").format(match.lastgroup, match.group()))
        end = match.end()
    parts.append(escape(text[end:]))
    return Markup("").join(parts)


def gutter(source: str) -> str:
    """Line numbers, one a line."""
    return "\n".join(str(i + 1) for i in range(source.count("\n") + 1))
