package fuseserver

import (
	"bytes"
	"log/slog"
)

// fuseLog passes on what go-fuse logs, except the line that it writes when an ioctl
// has been answered already (see answerEmpty).
type fuseLog struct{ log *slog.Logger }

var answeredIoctl = []byte("writer: Write/Writev failed, err: 2=no such file or directory. opcode: IOCTL")

func (f *fuseLog) Write(line []byte) (int, error) {
	if text := bytes.TrimSpace(line); !bytes.Equal(text, answeredIoctl) {
		f.log.Warn("message of go-fuse", "text", string(text))
	}
	return len(line), nil
}
