package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// use makes the activator and Libra's parts as a policy wants them.
func (e *evaluate) use(ctx context.Context, p policy) error {
	if p.libra && p.parts != e.parts {
		e.say("Libra's parts: %s", p.Title)
		if err := e.setParts(ctx, p.parts); err != nil {
			return err
		}
		e.parts = p.parts
	}
	if p.libra == e.libra {
		return nil
	}
	swap, which := e.restoreActivator, "putting the stock one back"
	if p.libra {
		swap, which = e.installActivator, "putting Libra's in the stock one's place"
	}
	e.say("activator: %s", which)
	if err := swap(ctx); err != nil {
		return err
	}
	e.libra = p.libra
	return nil
}

// under is the evaluation as a policy wants the cluster.
func (e *evaluate) under(ctx context.Context, p policy) (*evaluate, error) {
	if err := e.use(ctx, p); err != nil {
		return nil, err
	}
	apart, ok := e.apart[p.Name]
	if !ok {
		return e, nil
	}
	own := *e
	own.demo = apart
	if p.vpa {
		return &own, e.scaleVPA(ctx, 1)
	}
	return &own, nil
}

// leave ends a policy's turn.
func (e *evaluate) leave(ctx context.Context, p policy) error {
	if p.vpa {
		return e.scaleVPA(ctx, 0)
	}
	return nil
}

// installApart installs the functions of the policies that have their own. They stay
// until the end, so that all policies have the same beside them.
func (e *evaluate) installApart(ctx context.Context) error {
	e.apart = map[string]*demo{}
	for _, p := range e.chosen {
		if p.services == nil {
			continue
		}
		own := *e.demo
		own.services, own.namespace = *p.services, e.namespaceOf(p)
		e.say("functions: %s, in the namespace %s", p.Title, own.namespace)
		e.apart[p.Name] = &own // also when it is only half there
		err := own.makeNamespace(ctx)
		if err == nil {
			err = own.installFunctions(ctx)
		}
		if err == nil {
			own.targets, err = own.findTargets(ctx)
		}
		if err != nil {
			return err
		}
		if p.vpa {
			if err := errors.Join(e.installVPA(ctx, &own), e.scaleVPA(ctx, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// namespaceOf is where the functions of a policy are.
func (e *evaluate) namespaceOf(p policy) string {
	if p.services == nil {
		return e.namespace
	}
	return e.namespace + "-" + strings.ReplaceAll(p.Name, "_", "-")
}

// namespaces are those of the functions of all policies.
func (e *evaluate) namespaces() []string {
	var names []string
	for _, p := range e.chosen {
		if n := e.namespaceOf(p); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// makeNamespace makes the namespace of the functions, after the end of one that is about
// to go.
func (d *demo) makeNamespace(ctx context.Context) error {
	return eventually(ctx, removeTimeout, func(ctx context.Context) error {
		_, err := d.kubectl.do(ctx, call{timeout: time.Minute, stdin: strings.NewReader(fmt.Sprintf(
			"{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", d.namespace)), args: []string{"apply", "--server-side", "--field-manager=" + fieldManager, "-f", "-"}})
		if err != nil {
			return err
		}
		var namespace corev1.Namespace
		if err := d.kubectl.get(ctx, &namespace, "namespace", d.namespace); err != nil {
			return err
		}
		if namespace.DeletionTimestamp != nil {
			return fmt.Errorf("namespace %s of an earlier evaluation is about to go, and has not", d.namespace)
		}
		return nil
	})
}

// removeApart removes the autoscaler, and begins to remove the functions.
func (e *evaluate) removeApart(ctx context.Context) error {
	var errs []error
	if slices.ContainsFunc(e.chosen, func(p policy) bool { return p.vpa }) {
		errs = append(errs, e.removeVPA(ctx))
	}
	for _, own := range e.apart {
		_, err := own.kubectl.run(ctx, "delete", "--ignore-not-found", "--wait=false", "namespace/"+own.namespace)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// setParts sets Libra's parts and waits until they are.
func (d *demo) setParts(ctx context.Context, p parts) error {
	dir := d.path("kustomize", "libra")
	if err := d.images.kustomize(dir, libraManifests, "", p.patches()...); err != nil {
		return err
	}
	if err := d.kubectl.apply(ctx, dir); err != nil {
		return err
	}
	if err := d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", "daemonset/libra-agent"); err != nil {
		return err
	}
	// KServe takes a moment to write down in the Deployment what the InferenceService says.
	if err := eventually(ctx, time.Minute, func(ctx context.Context) error {
		var deployment appsv1.Deployment
		if err := d.kubectl.get(ctx, &deployment, "-n", libraNamespace, "deployment", "libra-predictor"); err != nil {
			return err
		}
		var got parts
		for _, v := range deployment.Spec.Template.Spec.Containers[0].Env {
			switch v.Name {
			case estimatorEnv:
				got.estimator = v.Value
			case durationsEnv:
				got.unlimited = v.Value == unlimitedDurations
			}
		}
		if got.unsafeguarded, got.threshold = p.unsafeguarded, p.threshold; got != p {
			return fmt.Errorf("deployment/libra-predictor is set to %+v, and is to be %+v", got, p)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", "deployment/libra-predictor"); err != nil {
		return err
	}
	// A replica serves what another has learned until it learns itself.
	return eventually(ctx, time.Minute, func(ctx context.Context) error {
		out, err := d.kubectl.run(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/services/%s/proxy/libra/v1/functions", libraNamespace, predictorService))
		if err != nil {
			return err
		}
		return p.answering(out)
	})
}

// answering says which functions are not answered as the parts are set, in the
// predictor's list of functions.
func (p parts) answering(list []byte) error {
	var said struct {
		Functions []struct {
			Name       string
			Estimators map[string]string
		}
	}
	if err := json.Unmarshal(list, &said); err != nil {
		return fmt.Errorf("the predictor's list of functions: %w", err)
	}
	var wrong []error
	for _, f := range said.Functions {
		cpu, duration := f.Estimators["cpu"], f.Estimators["duration"]
		known := cpu != "" && cpu != "none"
		if known && ((cpu == movingWindow) != (p.estimator == movingWindow) || (duration == unlimitedDurations) != p.unlimited) {
			wrong = append(wrong, fmt.Errorf("%s is answered by %s, its duration by %s", f.Name, cpu, duration))
		}
	}
	return errors.Join(wrong...)
}
