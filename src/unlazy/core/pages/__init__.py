"""What all pages share: template, style, figures with tooltips, typeset formulas. Offline, on a phone and in print."""
