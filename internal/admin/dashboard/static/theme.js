// Applies the chosen theme before the page is drawn. Without a choice, or without storage, the system's theme holds.
try {
  const theme = localStorage.getItem("kv3fs.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is off: the system's theme holds.
}
