"use strict";
// The texts of the status page in the browser's language: English, or Chinese. English is in the page itself.

const CHINESE = {
  "Filter": "过滤", "name or state": "名称或状态", "Token": "令牌", "for commands": "用于操作",
  "Destinations": "destination", "No destination is configured.": "没有配置 destination。",
  "Nodes": "节点", "Node": "节点", "Address": "地址", "Version": "版本", "Runs": "正在运行", "Stands by for": "待命",
  "Note": "备注", "Cancel": "取消", "Go on": "继续", "1 hour ago": "1 小时前", "now": "现在",
  "Binlog kept": "binlog 保留", "Pause": "暂停", "Resume": "恢复", "Restart": "重启",
  "The stream ends in order, and starts again when it is resumed.": "处理完在途数据后停止，恢复时再开始。",
  "The stream continues after what was confirmed.": "从已确认的位点之后继续。",
  "The stream ends in order and starts again, with new connections.": "处理完在途数据后停止，再用新连接重新开始。",
  "for {}": "已持续 {}", "nobody": "无", "{} (this one stands by)": "{}（本节点待命）", "{}, epoch {}": "{}，epoch {}",
  "Lag": "延迟", "Rows/s": "行/秒", "Position": "位点", "Source": "源库", "Backlog": "积压", "Parked": "暂存",
  "Last error{}": "最近的错误{}", "Enter the token first": "请先输入令牌",
  " (reading {}, publishing {})": "（读取 {}，发布 {}）", ", done in {}": "，还需 {}", " at {}/s": "，{}/s",
  ", {} need an operator": "，其中 {} 条需要人工处理", "{} messages{}": "{} 条消息{}", "{} %, {} left": "{} %，还剩 {}",
  ", {} left": "，还需 {}", "{} rows/s": "{} 行/秒", "Snapshot {}: {} rows, {}{}": "快照 {}：{} 行，{}{}",
  "lag, up to {}": "延迟，最高 {}", "Lag over the last hour, at most {}": "最近一小时的延迟，最高 {}",
  "{}, version {}: {}": "{}，版本 {}：{}", "See docs/troubleshooting.md#config": "参见 docs/troubleshooting.md#config",
  "no destination": "没有 destination", "{} (see {})": "{}（参见 {}）", " (see {})": "（参见 {}）", "this one": "本节点",
  "drained": "已排空", "{}: {} is done": "{}：{}完成", "{}: the daemon did not answer ({})": "{}：守护进程没有应答（{}）",
  "✗ headrace does not answer": "✗ headrace 没有应答",
  "The daemon does not answer. What is shown is as of {}.": "守护进程没有应答。显示的是 {} 的状态。",
};
const chinese = navigator.language.toLowerCase().startsWith("zh");

/** A text in the browser's language. Also as a tag of a template, whose values keep their order. */
function t(parts, ...values) {
  const english = typeof parts === "string" ? parts : parts.join("{}");
  const text = (chinese && CHINESE[english]) || english;
  return text.split("{}").map((part, at) => (at ? `${values[at - 1]}${part}` : part)).join("");
}

function translate(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = node.data.trim();
    if (CHINESE[text]) node.data = node.data.replace(text, CHINESE[text]);
  }
  for (const name of ["placeholder", "aria-label"])
    for (const element of root.querySelectorAll(`[${name}]`)) element.setAttribute(name, t(element.getAttribute(name)));
}

if (chinese) {
  document.documentElement.lang = "zh-CN";
  translate(document.body);
  translate(document.getElementById("card").content);
}
