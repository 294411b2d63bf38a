package keeper_test

import (
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// The tree and the keeper know nothing of each other; the daemon joins them.
var _ tree.Usage = (*keeper.Keeper)(nil)
