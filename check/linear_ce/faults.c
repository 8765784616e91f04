/* faults.c: the faults of cross entropy, each a call that is a little different from the one asked for. */
#include "linear_ce.h"

static bool given_logits(const ridge_call *call)
{
    return call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD;
}

static int class_weight_of(const ridge_call *call)
{
    switch (call->op) {
    case RIDGE_LINEAR_CE_BACKWARD:
        return RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT;
    case RIDGE_CE_FWD:
        return RIDGE_CE_FWD_CLASS_WEIGHT;
    case RIDGE_CE_BWD:
        return RIDGE_CE_BWD_CLASS_WEIGHT;
    default:
        return call->op == RIDGE_CE_COMBINE ? (int)RIDGE_CE_COMBINE_CLASS_WEIGHT : (int)RIDGE_LINEAR_CE_CLASS_WEIGHT;
    }
}

static ridge_status forgets_ignore_index(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.ignore_index = -1000;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_a_block_of_classes(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);
    const int vocab = given_logits(r->call) || r->call->op == RIDGE_CE_COMBINE ? 1 : 2;

    copy.dim[vocab] -= 32;
    return fault_run_changed(r, &copy);
}

static ridge_status forgets_the_class_weights(const faulty_run *r)
{
    ridge_call copy = *r->call;

    ridge_set(&copy, class_weight_of(r->call), RIDGE_NONE, NULL, 0);
    return fault_run_changed(r, &copy);
}

static ridge_status forgets_the_z_loss(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.lse_square_scale = 0;
    return fault_run_changed(r, &copy);
}

static ridge_status smooths_too_much(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.label_smoothing *= 1.25f;
    return fault_run_changed(r, &copy);
}

static ridge_status is_too_warm(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.temperature *= 1.01f;
    return fault_run_changed(r, &copy);
}

static ridge_status forgets_the_softcap(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.softcap = 0;
    return fault_run_changed(r, &copy);
}

/* The mean over all rows, not over those that are not ignored. */
static ridge_status divides_by_all_rows(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);
    const int loss =
        r->call->op == RIDGE_CE_FWD ? (int)RIDGE_CE_FWD_LOSS : (int)RIDGE_LINEAR_CE_LOSS; /* combine's too */
    char *at = (char *)r->memory + r->im->offset[loss];
    float value = 0;

    if (!status)
        status = r->device->backend->sync(r->device, r->stream);
    if (!status)
        status = r->device->backend->download(r->device, &value, at, sizeof value);
    value *= 0.8f; /* every fifth row of the case is ignored */
    return status ? status : r->device->backend->upload(r->device, at, &value, sizeof value);
}

static bool has_logits(const ridge_kernel *kernel)
{
    return kernel->op != RIDGE_CE_COMBINE;
}

static bool has_a_loss(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_LINEAR_CE_EVAL || kernel->op == RIDGE_CE_FWD || kernel->op == RIDGE_CE_COMBINE;
}

const planted_fault ce_faults[] = {
    {"forgets ignore_index", forgets_ignore_index, NULL, false},
    {"drops a block of classes", drops_a_block_of_classes, NULL, false},
    {"forgets the class weights", forgets_the_class_weights, NULL, false},
    {"forgets the z-loss", forgets_the_z_loss, NULL, false},
    {"smooths too much", smooths_too_much, NULL, false},
    {"is too warm", is_too_warm, has_logits, false},
    {"forgets the softcap", forgets_the_softcap, has_logits, false},
    {"divides by all rows", divides_by_all_rows, has_a_loss, false},
    {NULL, NULL, NULL, false},
};
