package fuseserver

import (
	"bytes"
	"log/slog"
)

// fuseLog passes on what go-fuse logs, except the line that it writes when a request
// has been answered already (see answerEmpty and late).
type fuseLog struct{ log *slog.Logger }

var answeredAlready = []byte("writer: Write/Writev failed, err: 2=no such file or directory. opcode: ")

func (f *fuseLog) Write(line []byte) (int, error) {
	if text := bytes.TrimSpace(line); !bytes.HasPrefix(text, answeredAlready) {
		f.log.Warn("message of go-fuse", "text", string(text))
	}
	return len(line), nil
}
