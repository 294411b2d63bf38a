package usrbio

import "time"

// SetPatience is for tests that have less of it.
func (m *Mount) SetPatience(d time.Duration) { m.desk.(*iovsDir).patience = d }
