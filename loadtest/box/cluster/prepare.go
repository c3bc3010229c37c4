package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/versions"
)

const (
	// Where containerd keeps images. It writes blobs and the files of unpacked layers once.
	contentStore    = "io.containerd.content.v1.content"
	snapshotsFolder = "io.containerd.snapshotter.v1.overlayfs/snapshots"
	snapshotsDB     = "io.containerd.snapshotter.v1.overlayfs/metadata.db"
	metadataFolder  = "io.containerd.metadata.v1.bolt"
	metadataDB      = metadataFolder + "/meta.db"

	// workersFolder, in a prepared folder, has the files for workers.
	workersFolder = "workers"
	// preparing is where a prepared folder is made, beside the finished ones.
	preparing = ".new"
	// preparedList says which images are in a prepared folder.
	preparedList = "images.json"

	prepareTimeout = 10 * time.Minute
)

// prepared is what a node's containerd starts with: images that another containerd, which ran only for
// that, imported and unpacked.
type prepared struct {
	Containerd string            `json:"containerd"`
	Images     []image.Reference `json:"images"`
	tars       map[image.Reference]string
}

// preparedOf returns what should be prepared from the image tars of the cache.
func preparedOf(l layout.Layout) (prepared, error) {
	p := prepared{Containerd: versions.Containerd, tars: map[image.Reference]string{}}
	tars, err := filepath.Glob(filepath.Join(l.Images(), "*.tar"))
	if err != nil {
		return p, err
	}
	for _, tar := range tars {
		ref, err := image.InTar(tar)
		if err != nil {
			return p, fmt.Errorf("%w: remove the file and build again", err)
		}
		p.Images, p.tars[ref] = append(p.Images, ref), tar
	}
	return p, nil
}

// dir returns the folder, whose name depends on its content.
func (p prepared) dir(l layout.Layout) (string, error) {
	data, err := json.Marshal(struct {
		prepared
		Platform []string
	}{p, ofPlatform})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return filepath.Join(l.Prepared(), hex.EncodeToString(sum[:])[:16]), nil
}

// PrepareImages imports the image tars of the cache into a folder that containerd on new nodes starts
// with, so that each node has the images at once. It does nothing if the folder is up to date. Otherwise
// it starts from the last one and imports only what changed.
func PrepareImages(ctx context.Context, l layout.Layout, log func(format string, args ...any)) error {
	want, err := preparedOf(l)
	if err != nil {
		return err
	}
	dir, err := want.dir(l)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err == nil {
		return keepOnly(l, dir)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	// An interrupted run left its folder half made.
	made := filepath.Join(l.Prepared(), preparing)
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := os.MkdirAll(made, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(made)
	root := filepath.Join(made, "root")
	last, had, err := lastPrepared(l)
	if err != nil {
		return err
	}
	if last != "" {
		if err := linkPrepared(ctx, last, root); err != nil {
			return err
		}
	}
	n, err := want.make(ctx, l, made, had.Images)
	if err == nil {
		err = want.makeWorkers(ctx, l, made)
	}
	if err != nil {
		return fmt.Errorf("prepare the nodes' images: %w", err)
	}
	if err := os.Rename(root, dir); err != nil {
		return err
	}
	log("%d of %d images prepared in %.0f s", n, len(want.Images), time.Since(start).Seconds())
	return keepOnly(l, dir)
}

// keepOnly removes every prepared folder except dir.
func keepOnly(l layout.Layout, dir string) error {
	entries, err := os.ReadDir(l.Prepared())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(l.Prepared(), e.Name()); path != dir {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastPrepared returns the folder that PrepareImages made last, and its content; dir is empty if there
// is none of this version of containerd.
func lastPrepared(l layout.Layout) (dir string, had prepared, err error) {
	lists, err := filepath.Glob(filepath.Join(l.Prepared(), "*", preparedList))
	if err != nil {
		return "", prepared{}, err
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			return "", prepared{}, err
		}
		var p prepared
		if json.Unmarshal(data, &p) == nil && p.Containerd == versions.Containerd {
			return filepath.Dir(list), p, nil
		}
	}
	return "", prepared{}, nil
}

// make updates the root in the folder made, which has the images had, to the wanted ones. It returns the
// number of images that it imported.
func (p prepared) make(ctx context.Context, l layout.Layout, made string, had []image.Reference) (imported int, err error) {
	d, err := startPreparing(l, made)
	if err != nil {
		return 0, err
	}
	imported, err = p.update(ctx, d, had)
	if endErr := d.end(ctx); err == nil {
		err = endErr
	}
	if err != nil {
		return 0, fmt.Errorf("%w; the end of containerd's log:\n%s", err, lastLines(d.log, 10))
	}
	data, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	return imported, os.WriteFile(filepath.Join(made, "root", preparedList), data, 0o644)
}

// makeWorkers makes the workers' root from the root in the folder made, and puts it inside that root.
// Most files are for the control node only, and linking them takes a while.
func (p prepared) makeWorkers(ctx context.Context, l layout.Layout, made string) error {
	at := filepath.Join(made, workersFolder)
	if err := linkPrepared(ctx, filepath.Join(made, "root"), filepath.Join(at, "root")); err != nil {
		return err
	}
	of := prepared{Containerd: p.Containerd}
	for _, ref := range p.Images {
		if !slices.Contains(ofPlatform, imageName(ref.Name)) {
			of.Images = append(of.Images, ref)
		}
	}
	if _, err := of.make(ctx, l, at, p.Images); err != nil {
		return err
	}
	return os.Rename(filepath.Join(at, "root"), filepath.Join(made, "root", workersFolder))
}

func (p prepared) update(ctx context.Context, d *preparer, had []image.Reference) (imported int, err error) {
	if err := d.await(ctx); err != nil {
		return 0, err
	}
	// As many as there are cores to unpack images.
	g, importing := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, ref := range p.Images {
		if slices.Contains(had, ref) {
			continue
		}
		imported++
		g.Go(func() error { return d.ctr(importing, "images", "import", p.tars[ref]) })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	var gone []string
	for _, ref := range had {
		if !slices.ContainsFunc(p.Images, func(wanted image.Reference) bool { return wanted.Name == ref.Name }) {
			gone = append(gone, ref.Name)
		}
	}
	if len(gone) > 0 {
		if err := d.ctr(ctx, append([]string{"images", "rm"}, gone...)...); err != nil {
			return 0, err
		}
	}
	return imported, d.collect(ctx)
}

// preparer is a containerd that imports images and runs nothing. It ends when this process does, and its
// mounts with it.
type preparer struct {
	layout layout.Layout
	socket string
	log    string
	stop   func() error
	ended  chan error
}

func startPreparing(l layout.Layout, made string) (*preparer, error) {
	d := &preparer{layout: l, socket: filepath.Join(made, "containerd.sock"), log: filepath.Join(made, "log"), ended: make(chan error, 1)}
	config := filepath.Join(made, "containerd.toml")
	if err := os.WriteFile(config, prepareConfig(made, d.socket), 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(l.Bin("containerd"), "--config", config)
	cmd.Env, cmd.Dir = environment(l), "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL, Setsid: true}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			d.ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	d.stop = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	return d, nil
}

// prepareConfig configures a containerd without the plugins that run containers. The kubelet's plugin
// labels its images when it starts.
func prepareConfig(made, socket string) []byte {
	return fmt.Appendf(nil, `version = 3
root = %s
state = %s
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]

[grpc]
  address = %s
`, strconv.Quote(filepath.Join(made, "root")), strconv.Quote(filepath.Join(made, "state")), strconv.Quote(socket))
}

func (d *preparer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return poll(ctx, 20*time.Millisecond, func() (bool, string, error) {
		select {
		case err := <-d.ended:
			d.ended <- err
			return false, "", fmt.Errorf("containerd ended (%v)", err)
		default:
		}
		_, err := os.Stat(d.socket)
		return err == nil, "containerd does not listen yet", nil
	})
}

// end makes containerd close its databases.
func (d *preparer) end(ctx context.Context) error {
	if err := d.stop(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-d.ended:
		return err
	case <-time.After(stopTimeout):
		return errors.New("containerd did not end")
	}
}

// collect removes the data of earlier images now, not on every node: deleting a lease can wait for the
// garbage collection.
func (d *preparer) collect(ctx context.Context) error {
	if err := d.ctr(ctx, "leases", "create", "--id", "collect"); err != nil {
		return err
	}
	return d.ctr(ctx, "leases", "delete", "--sync", "collect")
}

func (d *preparer) ctr(ctx context.Context, args ...string) error {
	_, err := runCtr(ctx, d.layout, d.socket, args...)
	return err
}

// linkPrepared makes the root of a containerd from the prepared folder from. It hard-links the files
// that are written once.
func linkPrepared(ctx context.Context, from, to string) error {
	for _, folder := range []string{contentStore, snapshotsFolder} {
		if err := copyTree(ctx, filepath.Join(from, folder), filepath.Join(to, folder), "--link"); err != nil {
			return err
		}
	}
	for _, file := range []string{snapshotsDB, metadataDB} {
		if err := copyTree(ctx, filepath.Join(from, file), filepath.Join(to, file)); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies a file or folder with owners, modes, times, extended attributes and devices.
func copyTree(ctx context.Context, from, to string, options ...string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	args := append([]string{"--archive", "--no-target-directory"}, options...)
	if out, err := exec.CommandContext(ctx, "cp", append(args, from, to)...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s to %s: %w: %s", from, to, err, lastOf(string(out)))
	}
	return nil
}

func lastOf(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// giveImages gives nodes that are not started yet the result of PrepareImages.
func (c Cluster) giveImages(ctx context.Context, nodes ...member) error {
	dir, _, err := lastPrepared(c.Layout)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range nodes {
		g.Go(func() error { return m.giveImages(ctx, dir) })
	}
	return g.Wait()
}

// giveImages gives a node that is not started yet the prepared images, if they are on the same file
// system. Otherwise importing what the node may run takes less than copying everything.
func (m member) giveImages(ctx context.Context, from string) error {
	root := containerdRoot(m.layout)
	if err := os.RemoveAll(root); err != nil { // an earlier node's
		return err
	}
	if from == "" {
		return nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if m.isWorker() {
		from = filepath.Join(from, workersFolder)
	}
	err := os.Link(filepath.Join(from, preparedList), filepath.Join(root, preparedList))
	switch {
	// Also for a file system without hard links, or if nothing was made for the node.
	case errors.Is(err, unix.EXDEV), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	return linkPrepared(ctx, from, root)
}
