// Before the page is drawn: the colour scheme that was chosen, if it is not the system's.
try {
  const theme = localStorage.getItem("backtrail-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is blocked: the system's scheme */ }
