/* faults.c: the faults of cross entropy: what a call says and a kernel forgets, outputs of rows and of classes. */
#include "linear_ce.h"

static ridge_status forgets_ignore_index(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.ce.ignore_index = -1000;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_a_block_of_classes(const faulty_run *r)
{
    const bool given = r->call->op == RIDGE_CE_FWD || r->call->op == RIDGE_CE_BWD || r->call->op == RIDGE_CE_COMBINE;
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[given ? 1 : 2] -= 32;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_a_block_of_hidden_units(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[1] -= 8;
    return fault_run_changed(r, &copy);
}

/* A float of an output times `factor`. */
static ridge_status scale_number(const faulty_run *r, const char *name, size_t at, float factor)
{
    const int arg = fault_slot(r->call, name);
    ridge_status status = fault_run(r, r->call);
    float value = 0;

    at = r->im->offset[arg] + at * sizeof value;
    status = status ? status : fault_read(r, at, &value, sizeof value);
    value *= factor;
    return status ? status : fault_write(r, at, &value, sizeof value);
}

/* The mean over all rows, not over those that are not ignored: every fifth row of the case is. */
static ridge_status divides_by_all_rows(const faulty_run *r)
{
    return scale_number(r, "loss", 0, 0.8f);
}

static ridge_status is_off_in_one_row(const faulty_run *r)
{
    return scale_number(r, r->planted->operand, 1, r->planted->value);
}

static ridge_status accumulates_twice(const faulty_run *r)
{
    const ridge_status status = fault_run(r, r->call);

    return status ? status : fault_run(r, r->call);
}

/* The first of the classes that have no target keeps what dbias held. */
static ridge_status forgets_a_class_of_dbias(const faulty_run *r)
{
    const size_t at = r->im->offset[fault_slot(r->call, "dbias")] + 4 * (size_t)(r->call->dim[2] - 1);
    const ridge_status status = fault_run(r, r->call);

    return status ? status : fault_write(r, at, r->im->host + at, 4);
}

static bool has_logits(const ridge_kernel *kernel)
{
    return kernel->op != RIDGE_CE_COMBINE;
}

static bool makes_logits(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_LINEAR_CE_EVAL || kernel->op == RIDGE_LINEAR_CE_TRAIN ||
           kernel->op == RIDGE_LINEAR_CE_BACKWARD;
}

static bool has_a_loss(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_LINEAR_CE_EVAL || kernel->op == RIDGE_CE_FWD || kernel->op == RIDGE_CE_COMBINE;
}

static bool bends(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_LINEAR_CE_BACKWARD || kernel->op == RIDGE_CE_BWD;
}

static bool makes_entropy(const ridge_kernel *kernel)
{
    return !bends(kernel);
}

#define OPTION(field) .option = offsetof(ridge_ce_options, field)

static const char in_begin[] = "linear_ce_train tokens=21 hidden=72 vocab=136 dtype=bf16 vocab_offset=60 "
                               "vocab_total=200 phase=begin dx=0 dw=0";
static const char in_dx[] = "linear_ce_train tokens=21 hidden=72 vocab=136 dtype=bf16 vocab_offset=60 vocab_total=200 "
                            "phase=dx dw=0 lse_square_scale=0.05 scale=1";

const planted_fault ce_faults[] = {
    {.name = "begins with the next row's target",
     .fault = fault_takes_the_next,
     .operand = "target",
     .problem = in_begin},
    {.name = "goes on from the next row's lse", .fault = fault_takes_the_next, .operand = "lse", .problem = in_dx},
    {.name = "goes on without grad_scale", .fault = fault_forgets_operand, .operand = "grad_scale", .problem = in_dx},
    {.name = "forgets ignore_index", .fault = forgets_ignore_index},
    {.name = "drops a block of classes", .fault = drops_a_block_of_classes},
    {.name = "drops a block of hidden units", .fault = drops_a_block_of_hidden_units, .applies = makes_logits},
    {.name = "forgets the class weights", .fault = fault_forgets_operand, .operand = "class_weight"},
    {.name = "takes the next class's weight", .fault = fault_takes_the_next, .operand = "class_weight"},
    {.name = "forgets the bias of the logits", .fault = fault_forgets_operand, .operand = "bias"},
    {.name = "takes the next row's target", .fault = fault_takes_the_next, .operand = "target"},
    {.name = "takes the next row's lse", .fault = fault_takes_the_next, .op = RIDGE_CE_BWD, .operand = "lse"},
    {.name = "forgets the gradient of the loss", .fault = fault_forgets_operand, .operand = "dloss"},
    {.name = "forgets the gradient of the entropy", .fault = fault_forgets_operand, .operand = "dentropy"},
    {.name = "takes the next row's entropy", .fault = fault_takes_the_next, .applies = bends, .operand = "entropy"},
    {.name = "takes the next row's ids", .fault = fault_takes_the_next, .operand = "ids"},
    {.name = "takes the next row's gradients of ids", .fault = fault_takes_the_next, .operand = "did_logprob"},
    {.name = "gets an id's log-probability wrong",
     .fault = is_off_in_one_row,
     .op = RIDGE_LINEAR_CE_EVAL,
     .operand = "id_logprob",
     .value = 1.03f},
    {.name = "gets a top class wrong", .fault = fault_spoils_an_element, .operand = "top_id"},
    {.name = "gets a top class's log-probability wrong",
     .fault = is_off_in_one_row,
     .operand = "top_logprob",
     .value = 1.03f},
    {.name = "gets a drawn class wrong", .fault = fault_spoils_an_element, .operand = "sample_id"},
    {.name = "gets a drawn class's log-probability wrong",
     .fault = is_off_in_one_row,
     .operand = "sample_logprob",
     .value = 1.03f},
    {.name = "gets a drawn class's score wrong", .fault = is_off_in_one_row, .operand = "sample_score", .value = 1.03f},
    {.name = "draws by the next row's seed", .fault = fault_takes_the_next, .operand = "seed"},
    {.name = "draws by the next row's counter", .fault = fault_takes_the_next, .operand = "counter"},
    {.name = "forgets the z-loss", .fault = fault_changes_option, OPTION(lse_square_scale), .value = 0},
    {.name = "smooths too much", .fault = fault_changes_option, OPTION(label_smoothing), .value = 0.25f},
    {.name = "is too warm", .fault = fault_changes_option, .applies = has_logits, OPTION(temperature), .value = 0.81f},
    {.name = "forgets the softcap", .fault = fault_changes_option, .applies = has_logits, OPTION(softcap), .value = 0},
    {.name = "forgets grad_scale",
     .fault = fault_changes_option,
     .op = RIDGE_LINEAR_CE_TRAIN,
     OPTION(grad_scale),
     .value = 1},
    {.name = "forgets the device's grad_scale", .fault = fault_forgets_operand, .operand = "grad_scale"},
    {.name = "divides by all rows", .fault = divides_by_all_rows, .applies = has_a_loss},
    {.name = "forgets to add to dw",
     .fault = fault_changes_flags,
     .op = RIDGE_LINEAR_CE_TRAIN,
     .flags = RIDGE_ACCUMULATE},
    {.name = "adds to dw twice", .fault = accumulates_twice, .op = RIDGE_LINEAR_CE_TRAIN, .by = "eager run"},
    {.name = "forgets a class of dbias", .fault = forgets_a_class_of_dbias, .operand = "dbias"},
    {.name = "gets a row's lse wrong",
     .fault = is_off_in_one_row,
     .applies = has_a_loss,
     .operand = "lse",
     .value = 1.03f},
    {.name = "gets a row's entropy wrong",
     .fault = is_off_in_one_row,
     .applies = makes_entropy,
     .operand = "entropy",
     .value = 1.5f},
    {.name = "gets a row's target logit wrong", .fault = is_off_in_one_row, .operand = "target_logit", .value = 1.03f},
    {.name = "gets a row's loss wrong", .fault = is_off_in_one_row, .operand = "token_loss", .value = 1.03f},
    {.name = "gets a row's argmax wrong", .fault = fault_spoils_an_element, .operand = "argmax"},
    {.name = "miscounts the right rows", .fault = fault_spoils_an_element, .operand = "accuracy"},
    {.name = "miscounts the wrong targets", .fault = fault_spoils_an_element, .operand = "errors"},
    {.name = "never writes dbias", .fault = fault_never_writes, .operand = "dbias"},
    FAULT_SWALLOWS_A_NAN,
    {0},
};
