r"""Formulas in LaTeX as MathML, which browsers draw by themselves, from a file and without fonts.

A notebook is shown by JupyterLab, which brings a program of megabytes for its formulas. A slide
needs no program: what the lessons use of LaTeX is a small language, and a word that is not in it
is an error, never a wrong formula.
"""

# ruff: noqa: RUF001  signs that look like letters are what a table of signs is made of
from __future__ import annotations

import html
import re

from dlguide.checks import require

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+(?:[.,][0-9]+)*|\s+|.", re.S)
LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "phi": "φ", "omega": "ω", "ell": "ℓ", "infty": "∞", "partial": "∂", "top": "⊤",
    "nabla": "∇", "Delta": "Δ", "Sigma": "Σ",
}  # fmt: skip
SIGNS = {
    "cdot": "·", "times": "×", "odot": "⊙", "approx": "≈", "ne": "≠", "le": "≤", "ge": "≥",
    "ll": "≪", "gg": "≫", "sim": "∼", "in": "∈", "mid": "∣", "pm": "±", "ldots": "…", "cdots": "⋯",
    "leftarrow": "←", "rightarrow": "→", "to": "→", "Rightarrow": "⇒", "Longleftrightarrow": "⟺",
    "%": "%", "{": "{", "}": "}", "_": "_", "#": "#", "&": "&", "$": "$",
}  # fmt: skip
FENCES = {
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "lVert": "‖", "rVert": "‖",
    "lvert": "|", "rvert": "|", "langle": "⟨", "rangle": "⟩", "{": "{", "}": "}",
}  # fmt: skip
SPACES = {",": 0.17, ":": 0.22, ";": 0.28, " ": 0.25, "!": -0.17, "quad": 1.0, "qquad": 2.0}
FUNCTIONS = ("log", "ln", "exp", "sin", "cos", "tanh", "bmod")
LIMITS = {"sum": "∑", "prod": "∏", "max": "max", "min": "min", "argmax": "argmax", "lim": "lim"}
ACCENTS = {"hat": "^", "bar": "¯", "tilde": "~", "vec": "→"}
SIZES = {"big": 1.2, "Big": 1.8, "bigg": 2.4, "Bigg": 3.0}
MATRICES = {"matrix": ("", ""), "bmatrix": ("[", "]"), "pmatrix": ("(", ")")}


def mathml(source: str, display: bool = False) -> str:
    r"""Turn a formula in LaTeX into MathML.

    Args:
        source: what stands between the dollars.
        display: whether it stands on a line of its own, with limits above and below its sums.

    Returns:
        str: a `<math>` element; the source stands in it as its alternative text.

    Raises:
        ValueError: when a word of LaTeX is not known here, or a brace is not closed.

    >>> mathml(r"a_1")
    '<math alttext="a_1"><mrow><msub><mi>a</mi><mn>1</mn></msub></mrow></math>'
    """
    parser = _Parser(source)
    body = parser.row(())
    parser.demand(parser.peek() == "", "be LaTeX with every brace and \\right opened before")
    kind = ' display="block"' if display else ""
    words = html.escape(" ".join(source.split()), quote=True)
    return f'<math{kind} alttext="{words}">{body}</math>'


def _operator(sign: str, attributes: str = "") -> str:
    return f"<mo{attributes}>{html.escape(sign)}</mo>"


def _fence(sign: str, size: float = 0.0) -> str:
    """A bracket that grows with what it holds, or of a given size (em)."""
    fixed = f' minsize="{size}em" maxsize="{size}em"' if size else ""
    return _operator(sign, f' stretchy="true" symmetric="true"{fixed}') if sign != "." else ""


class _Parser:
    """Reads a formula from left to right; each method returns MathML and moves on."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = TOKEN.findall(source)
        self.at = 0

    def demand(self, holds: bool, must: str) -> None:
        require(holds, "formula", must, self.source)

    def peek(self) -> str:
        """The next token that is not blank; "" at the end."""
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        self.demand(token != "" and expected in ("", token), f"go on with {expected or 'a sign'}")
        self.at += 1
        return token

    def row(self, ends: tuple[str, ...]) -> str:
        """All up to one of the ends, which is left there."""
        parts = []
        while (token := self.peek()) and token not in ends and token not in ("}", "\\right"):
            parts.append(self.scripts())
        return f"<mrow>{''.join(parts)}</mrow>"

    def scripts(self) -> str:
        """An atom with what stands below and above it."""
        below, base = self.atom()
        under = over = ""
        while self.peek() in ("_", "^", "'"):
            mark = self.take()
            if mark == "_":
                under = self.argument()
            else:
                over += _operator("′") if mark == "'" else self.argument()
        over = f"<mrow>{over}</mrow>" if over.count("′") else over
        tags = ("munder", "mover", "munderover") if below else ("msub", "msup", "msubsup")
        if under and over:
            return f"<{tags[2]}>{base}{under}{over}</{tags[2]}>"
        if under or over:
            tag = tags[0] if under else tags[1]
            return f"<{tag}>{base}{under or over}</{tag}>"
        return base

    def atom(self) -> tuple[bool, str]:
        """(whether scripts go below and above, the smallest piece of a formula)."""
        token = self.take()
        if token == "{":
            inner = self.row(())
            self.take("}")
            return False, inner
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return False, f"<mn>{token}</mn>"
        if token.isalpha():
            return False, f"<mi>{token}</mi>"
        sign = {"-": "−", "*": "∗"}.get(token, token)
        fixed = ' stretchy="false"' if sign in "()[]|/" else ""
        return False, _operator(sign, fixed)

    def argument(self) -> str:
        """What a word or a script takes: a group, or one sign, also of a longer number."""
        token = self.peek()
        if len(token) > 1 and token[0].isdigit():
            self.tokens[self.at : self.at + 1] = [token[0], token[1:]]
        return self.atom()[1]

    def command(self, name: str) -> tuple[bool, str]:
        """A word that begins with a backslash, with its arguments."""
        if name in LETTERS:
            return False, f"<mi>{LETTERS[name]}</mi>"
        if name in SIGNS:
            return False, _operator(SIGNS[name])
        if name in SPACES:
            return False, f'<mspace width="{SPACES[name]}em"></mspace>'
        if name in FENCES:
            return False, _operator(FENCES[name], ' stretchy="false"')
        if name in FUNCTIONS:
            word = "mod" if name == "bmod" else name
            return False, _operator(word, ' lspace="0.17em" rspace="0.17em"')
        if name in LIMITS:
            return True, _operator(LIMITS[name], ' movablelimits="true"')
        if name in ("frac", "dfrac", "tfrac"):
            above, below = self.argument(), self.argument()
            style = {"dfrac": ' displaystyle="true"', "tfrac": ' displaystyle="false"'}
            return False, f"<mfrac{style.get(name, '')}>{above}{below}</mfrac>"
        if name == "binom":
            pair = f'<mfrac linethickness="0">{self.argument()}{self.argument()}</mfrac>'
            return False, f"<mrow>{_fence('(')}{pair}{_fence(')')}</mrow>"
        if name == "sqrt":
            return False, f"<msqrt>{self.argument()}</msqrt>"
        if name in ("text", "mathrm", "operatorname"):
            tag = "mi" if name == "operatorname" else "mtext"
            return False, f"<{tag}>{html.escape(self.words())}</{tag}>"
        if name in ACCENTS:
            sign = _operator(ACCENTS[name])
            return False, f'<mover accent="true">{self.argument()}{sign}</mover>'
        if name == "underbrace":
            # a brace grows only in a mathematical font, which not every machine has
            return True, f'<mrow class="brace">{self.argument()}</mrow>'
        if name in SIZES:
            return False, _fence(self.bracket(), SIZES[name])
        if name == "left":
            opening = self.bracket()
            inner = self.row(())
            self.take("\\right")
            return False, f"<mrow>{_fence(opening)}{inner}{_fence(self.bracket())}</mrow>"
        if name == "begin":
            return False, self.matrix()
        self.demand(False, f"be in the LaTeX that slides know, which has no \\{name}")
        return False, ""

    def bracket(self) -> str:
        token = self.take()
        name = token[1:] if token.startswith("\\") else ""
        self.demand(not name or name in FENCES, f"have a bracket in place of {token}")
        return FENCES[name] if name else token

    def words(self) -> str:
        """The text of a group, with its blanks."""
        self.take("{")
        begin = self.at
        while self.at < len(self.tokens) and self.tokens[self.at] != "}":
            self.at += 1
        self.demand(self.at < len(self.tokens), "have every brace closed")
        self.at += 1
        text = "".join(self.tokens[begin : self.at - 1])
        # MathML drops blanks at the ends of a text.
        return re.sub(r"\\(.)", r"\1", re.sub(r"\s+", "\N{NO-BREAK SPACE}", text))

    def matrix(self) -> str:
        kind = self.words()
        self.demand(kind in MATRICES, f"have one of {', '.join(MATRICES)} between \\begin, \\end")
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append(self.row(("&", "\\\\", "\\end")))
            mark = self.take()
            if mark == "\\end":
                break
            if mark == "\\\\":
                rows.append([])
        self.demand(self.words() == kind, f"end in \\end{{{kind}}}")
        cells = "".join(
            f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows
        )
        opening, closing = MATRICES[kind]
        table = f"<mtable>{cells}</mtable>"
        return f"<mrow>{_fence(opening or '.')}{table}{_fence(closing or '.')}</mrow>"
