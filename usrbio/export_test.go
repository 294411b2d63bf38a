package usrbio

import "time"

// SetPatience shortens the bound on waits for the daemon.
func (m *Mount) SetPatience(d time.Duration) { m.registrar.(*iovsDir).patience = d }
