package measure

import "time"

// Circumstances are what a reader must know to judge a figure or to measure it again.
type Circumstances struct {
	Version string    `json:"version"` // of kv3fs, with its commit
	Machine string    `json:"machine"` // processors, memory and kernel
	Date    time.Time `json:"date"`    // of the report
	Command string    `json:"command"` // as a shell takes it
}

// Lines returns the circumstances as text.
func (c Circumstances) Lines() []string {
	return []string{
		"kv3fs " + c.Version + ", " + c.Date.UTC().Format("2006-01-02 15:04 UTC") + ", on " + c.Machine,
		c.Command,
	}
}
