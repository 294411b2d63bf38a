package usrbio

import "time"

// SetAnswerTimeout shortens the bound on waits for the daemon.
func (m *Mount) SetAnswerTimeout(d time.Duration) { m.registrar.(*iovsDir).answerTimeout = d }
