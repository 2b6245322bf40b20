#include "engine/model/convert.h"
#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/model_option.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/model/described_model.h"
#include "engine/policy/lane_spec.h"

namespace keyhole {

namespace {

struct ConvertOptions {
    RunOptions run;
    std::string kv, merge = "uniform", out;
    bool compensate = false;
};

void run_convert(const ConvertOptions& options) {
    KvSharing sharing = parse_kv_sharing(options.kv);
    sharing.merge = options.merge == "released" ? KvMerge::released : KvMerge::uniform;
    sharing.compensate = options.compensate;
    const std::filesystem::path folder = model_path(options.run);
    const TerminationGuard guard;
    set_termination_note(fmt::format("nothing was written to {}", printable_text(options.out)));
    const Converted report = [&] {
        Progress progress("converting", 1);
        progress.update(0);
        return convert_model(folder, sharing, options.out, [&](double done) {
            check_termination();
            progress.update(done);
        });
    }();
    set_termination_note("");
    print_out("{}: {}, {:.2f} M parameters, feed-forward {}\n", printable_text(options.out), report.kv,
              1e-6 * static_cast<double>(report.n_parameters), report.d_ff);
    const DescribedModel before = describe_model(folder), after = describe_model(options.out);
    print_out("{}\n", after.model->config().merged
                          ? "K and V are merged and nothing was trained since: another, damaged model until "
                            "it is."
                      : kv_shape(after.model->config()) == kv_shape(before.model->config())
                          ? "The KV heads are shared as before: the same model."
                          : "KV heads are split into equal copies: the same model, with more K and V.");
    if (report.transformers.empty())
        print_out(
            "transformers has no model that borrows keys before rotation; Keyhole alone loads this "
            "folder.\n");
    else
        print_out("transformers loads it with {}.\n", report.transformers);
}

}  // namespace

void add_convert_command(const CliCommand& program) {
    auto options = std::make_shared<ConvertOptions>();
    const CliCommand command = program.add_command(
        "convert", "write a folder whose KV heads are merged, for Keyhole and transformers");
    options->run.add_model(command);
    command.add_option("--kv", options->kv, "how KV heads are shared: gqa:4, mqa, mlkv:m=4,g=1").required();
    command
        .add_option("--merge", options->merge,
                    "K and V of several layers: their mean, or as MLKV's code does")
        .one_of({"uniform", "released"});
    command.add_flag("--compensate", options->compensate,
                     "widen the MLPs by the parameters lost, as MLKV's converter does");
    command.add_option("-o,--out", options->out, "folder to write").required();
    command.does([options] { run_convert(*options); });
}

}  // namespace keyhole
