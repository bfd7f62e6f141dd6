"""Training of draft models that read the target's residuals: EAGLE-3, DFlash and DSpark, as plain torch on the CPU."""
