package etcdlog

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// damaged returns an error that says what in etcd or in a file is not what was written.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", pageservice.ErrCorrupt, fmt.Sprintf(format, args...))
}
