package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// enableUsers gives root the password and switches users on.
func (m *Members) enableUsers() {
	m.t.Helper()
	password := m.options.Password
	m.options.Password = "" // as long as nobody needs one
	c := m.Client()
	m.Await("users", func(ctx context.Context) error {
		if _, err := c.RoleAdd(ctx, "root"); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			return err
		}
		if _, err := c.UserAdd(ctx, "root", password); err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			return err
		}
		if _, err := c.UserGrantRole(ctx, "root", "root"); err != nil {
			return err
		}
		_, err := c.AuthEnable(ctx)
		return err
	})
	m.options.Password = password
}

// AddUser makes a user who may read and write what is below a prefix, and nothing else.
func (m *Members) AddUser(name, password, prefix string) {
	m.t.Helper()
	c := m.Client()
	m.Await("user "+name, func(ctx context.Context) error {
		if _, err := c.RoleAdd(ctx, name); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			return err
		}
		if _, err := c.RoleGrantPermission(ctx, name, prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/"), clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
			return err
		}
		if _, err := c.UserAdd(ctx, name, password); err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			return err
		}
		_, err := c.UserGrantRole(ctx, name, name)
		return err
	})
}
