// SPDX-License-Identifier: Apache-2.0
//
// The style of DirectoryPage, light and dark, for wide screens, telephones and paper.
#pragma once

namespace modcache::command_line {

inline constexpr char kPageStyle[] = R"css(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1a1f27;--soft:#59636f;--rule:#e2e6eb;
--grid:#e8ebef;--rate:#1f6fd6;--rate-fill:#1f6fd622;--time:#0b8467;--dead:#c2620e;--index:#7a5bd0;
--other:#8a94a0;--free:#e6e9ee}
@media(prefers-color-scheme:dark){:root{--page:#12151a;--card:#1a1f26;--text:#e7ebf0;--soft:#9aa5b1;
--rule:#2b323b;--grid:#262d36;--rate:#6aa9f7;--rate-fill:#6aa9f726;--time:#3fc29c;--dead:#ec9a4c;
--index:#a78df0;--other:#77828e;--free:#2a313a}}
*,*::before,*::after{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 3rem}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 1rem}
h3{font-size:1rem;margin:1.5rem 0 .5rem;overflow-wrap:anywhere}
h3:first-of-type{margin-top:0}
p{margin:.25rem 0}
.soft,small{color:var(--soft)}
code{font:.86em ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
a{color:var(--rate)}
section{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:1.25rem;
margin-top:1.25rem}
.tiles{display:grid;grid-template-columns:repeat(3,1fr);gap:.75rem;margin:1.25rem 0 0}
.tiles div{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:.85rem 1rem}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;font-size:1.45rem;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.tiles dd small{display:block;font-size:.8rem;font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:1.5rem}
.chart{margin:0;display:grid;grid-template-columns:auto 1fr;column-gap:.6rem}
.chart figcaption{grid-column:1/-1;font-weight:600;margin-bottom:.9rem}
.chart svg{width:100%;height:11rem;display:block;overflow:visible}
.chart path{fill:none;vector-effect:non-scaling-stroke}
.chart .grid{stroke:var(--grid);stroke-width:1}
.chart .line{stroke:var(--rate);stroke-width:2;stroke-linejoin:round}
.chart .dots{stroke:var(--rate);stroke-width:6;stroke-linecap:round}
.chart .bars{fill:var(--time)}
.chart .at{fill:var(--text);opacity:0}
.chart .at:hover{opacity:.08}
.ticks{min-width:3.4rem;display:flex;flex-direction:column;justify-content:space-between;height:11rem;text-align:right;
font-size:.8rem;color:var(--soft);font-variant-numeric:tabular-nums}
.ticks span{line-height:0;white-space:nowrap}
.dates{grid-column:2;display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft);
margin-top:.5rem;font-variant-numeric:tabular-nums}
details{margin-top:1.25rem}
summary{cursor:pointer;color:var(--soft)}
.wide{overflow-x:auto;margin-top:.75rem}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
th{color:var(--soft);font-weight:500}
.sizes{list-style:none;margin:0;padding:0}
.sizes li{padding:.7rem 0;border-top:1px solid var(--rule)}
.sizes li:first-child{border-top:0;padding-top:0}
.sizes .name{display:flex;gap:.75rem;justify-content:space-between;overflow-wrap:anywhere}
.sizes .name b{font-weight:600}
.sizes .name code{display:inline-block}
.sizes .name span:last-child,.sizes small span,.key li,.came small span{white-space:nowrap}
.bar{height:.55rem;border-radius:.3rem;background:var(--free);overflow:hidden;display:flex;margin:.35rem 0}
.bar i{display:block;height:100%;min-width:2px}
.sizes .bar i{background:var(--rate)}
.budget{height:1.5rem;border-radius:.4rem;gap:1px}
.values{background:var(--rate)}.dead{background:var(--dead)}.index{background:var(--index)}
.other{background:var(--other)}.free{background:var(--free)}
.key{list-style:none;margin:.9rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.4rem 1.5rem}
.key i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.5rem;
vertical-align:-.05rem;border:1px solid var(--rule)}
.came{list-style:none;margin:0;padding:0 0 0 1.4rem;position:relative}
.came li:not(:last-child)::after{content:"";position:absolute;left:-1.05rem;top:1.3rem;bottom:-.3rem;width:2px;
background:var(--rule)}
.came li{position:relative;padding:0 0 .9rem}
.came li:last-child{padding-bottom:0}
.came li::before{content:"";position:absolute;left:-1.36rem;top:.42rem;width:.75rem;height:.75rem;
border-radius:50%;background:var(--card);border:2px solid var(--rate)}
.came li:last-child::before{background:var(--rate)}
.came p{overflow-wrap:anywhere}
.came li:target{outline:2px solid var(--rate);outline-offset:.3rem;border-radius:.3rem}
footer{color:var(--soft);font-size:.85rem;margin-top:1.5rem}
@media(max-width:30rem){main{padding:1.25rem .9rem 2rem}section{padding:1rem}.tiles{grid-template-columns:1fr 1fr}
.tiles dd{font-size:1.25rem}}
@media print{body{background:none}section,.tiles div{break-inside:avoid}}
)css";

}  // namespace modcache::command_line
