"""The page around the sections of a report: one file, no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from drago._html import text

# (name, light, dark): grounds, text, lines, and the palette of Okabe and Ito, made lighter or
# darker until each stands out against its ground.
COLOURS = (
    ("ground", "#ffffff", "#14171a"),
    ("panel", "#f4f6f8", "#1e2328"),
    ("ink", "#1b1f24", "#e8eaed"),
    ("soft", "#4f5965", "#b3bcc6"),
    ("edge", "#d5dbe1", "#39424c"),
    ("link", "#0b5cad", "#7cb8f5"),
    ("c0", "#0072b2", "#59a9e6"),
    ("c1", "#c04f00", "#ff9a52"),
    ("c2", "#007a5a", "#3fc79a"),
    ("c3", "#a8457f", "#e699c6"),
    ("c4", "#8a6100", "#e6b44c"),
    ("c5", "#5b5bb5", "#a6a6f0"),
    ("c6", "#6b6b6b", "#a8a8a8"),
)

_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
header,main,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem}
h1,h3,p,li,.legend{overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:2.6rem 0 .6rem;line-height:1.25}
h3{font-size:1.02rem;margin:0 0 .2rem}
p{margin:.5rem 0;max-width:75ch}
a{color:var(--link)}
.soft,figcaption p,caption,footer{color:var(--soft)}
.verdict{background:var(--panel);border-left:5px solid var(--c1);border-radius:6px;
padding:.9rem 1.1rem;margin:1.2rem 0;font-size:1.08rem}
.verdict p{margin:.3rem 0}
.verdict ul{margin:.3rem 0;padding-left:1.2rem}
nav ul,.legend,.figures,.numbers{list-style:none;padding:0;margin:0}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.8rem 0}
nav a{display:inline-block;padding:.15rem 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;
margin:1rem 0}
.numbers div{background:var(--panel);border-radius:8px;padding:.7rem .9rem}
.numbers dt{color:var(--soft);font-size:.86rem;line-height:1.3}
.numbers dd{margin:.15rem 0 0;font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums}
.figures>div{min-width:0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:24px;
margin-top:1rem}
figure{margin:0;min-width:0;border:1px solid var(--edge);border-radius:8px;padding:1rem;
max-width:600px;width:100%}
figcaption p{font-size:.92rem;margin:.2rem 0 .6rem}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;font-size:.88rem;margin-bottom:.3rem}
.legend li{display:flex;align-items:center;gap:.4rem}
.legend svg{width:28px;flex:none}
details{margin-top:.5rem;font-size:.92rem}
summary{cursor:pointer;color:var(--link)}
.scroll{overflow-x:auto;margin:.8rem 0}
.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;font-size:.94rem;font-variant-numeric:tabular-nums}
caption span{display:inline-block;max-width:min(64ch,calc(100vw - 56px))}
caption{text-align:left;font-size:.9rem;padding-bottom:.4rem}
th,td{padding:.34rem .8rem .34rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid var(--edge)}
thead th{border-bottom:2px solid var(--edge);font-weight:600}
tbody th{font-weight:500;min-width:7rem}
td{white-space:nowrap}
td small{color:var(--soft)}
pre{background:var(--panel);border-radius:8px;padding:.9rem 1rem;overflow-x:auto;font-size:.86rem;
line-height:1.45}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
dl.list{display:grid;grid-template-columns:minmax(9rem,auto) 1fr;gap:.25rem 1.2rem;margin:.6rem 0}
dl.list dt{color:var(--soft)}
dl.list dd{margin:0;overflow-wrap:anywhere;min-width:0}
footer{margin-top:3rem;padding-bottom:2.5rem;font-size:.88rem;border-top:1px solid var(--edge);
padding-top:1rem}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.span{fill:none;stroke-width:2}
.dot{stroke:var(--ground);stroke-width:1}
.grid{stroke:var(--edge);stroke-width:.6;fill:none}
.frame{stroke:var(--soft);stroke-width:.8;fill:none}
.rule{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4;fill:none}
.grey{stroke:var(--soft);stroke-width:1.2}
svg text{fill:var(--ink);font-size:11.5px;font-family:inherit}
svg .name{paint-order:stroke;stroke:var(--ground);stroke-width:3px;stroke-linejoin:round}
svg .tick{fill:var(--soft);font-size:11px}
svg .axis{font-size:12px}
@media (max-width:560px){header,main,footer{padding-left:14px;padding-right:14px}
h1{font-size:1.5rem}header{padding-top:20px}figure{padding:.7rem}dl.list{grid-template-columns:1fr}
dl.list dd{margin-bottom:.4rem}.numbers{grid-template-columns:repeat(2,1fr)}
svg text{font-size:13px}svg .tick{font-size:12.5px}svg .axis{font-size:13.5px}}
@media print{body{font-size:10.5pt}header,main,footer{max-width:none;padding:0}nav{display:none}
figure,tr,.verdict,.numbers div{break-inside:avoid}h2,h3{break-after:avoid}
.figures{grid-template-columns:1fr 1fr;gap:12px}summary{list-style:none}.scroll{overflow:visible}
table{font-size:8.5pt}td{white-space:normal}th,td{padding:.2rem .5rem .2rem 0}tbody th{min-width:0}
td small{white-space:nowrap}caption span{max-width:none}
pre{white-space:pre-wrap}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, lead: str, sections: Sequence[tuple[str, str, str]], foot: str) -> str:
    """One page.

    Parameters
    ----------
    title : str
    lead : str
        HTML of what comes first.
    sections : list of (key, name, HTML)
    foot : str
        HTML of what comes last.
    """
    links = "".join(f'<li><a href="#{key}">{text(name)}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{text(name)}</h2>{inner}</section>'
        for key, name, inner in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{_colours()}{_STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{text(title)}</h1>{lead}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>{body}</main>\n<footer>{foot}</footer>\n</body>\n</html>\n"
    )


def _colours() -> str:
    """The two palettes; a page that is printed has the light one."""
    light = "".join(f"--{name}:{value};" for name, value, _ in COLOURS)
    dark = "".join(f"--{name}:{value};" for name, _, value in COLOURS)
    used = "".join(
        f".line.{name},.span.{name}{{stroke:var(--{name})}}.dot.{name}{{fill:var(--{name})}}"
        for name, _, _ in COLOURS
        if name[0] == "c"
    )
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{used}"
    )
