// Railscope console: `/` moves to the search field. Pages are complete without it.
"use strict";
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.getElementById("search")?.focus();
});
