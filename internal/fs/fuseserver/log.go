package fuseserver

import (
	"bytes"
	"log/slog"
)

// fuseLog passes on what go-fuse logs, except the line that it writes when a request has been answered already: an ioctl
// (see answerEmpty), and with late any other that took too long (see late).
type fuseLog struct {
	log  *slog.Logger
	late bool
}

var answeredAlready = []byte("writer: Write/Writev failed, err: 2=no such file or directory. opcode: ")

func (f *fuseLog) Write(line []byte) (int, error) {
	text := bytes.TrimSpace(line)
	opcode, already := bytes.CutPrefix(text, answeredAlready)
	if !already || !f.late && string(opcode) != "IOCTL" {
		f.log.Warn("message of go-fuse", "text", string(text))
	}
	return len(line), nil
}
