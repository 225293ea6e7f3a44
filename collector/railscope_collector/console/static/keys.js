// Railscope console: `/` moves to the search field, and a button copies a command. Pages are complete without it.
"use strict";
document.documentElement.classList.add("scripted");
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.getElementById("search")?.focus();
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const command = button.nextElementSibling;
  try {
    await navigator.clipboard.writeText(command.textContent);
    button.textContent = "Copied";
  } catch {
    // Browsers let only pages of https and of this machine write to the clipboard: Ctrl+C copies the selection.
    getSelection().selectAllChildren(command);
    button.textContent = "Press Ctrl+C";
  }
});
