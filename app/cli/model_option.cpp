#include "app/cli/model_option.h"

#include "app/base/command_text.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "app/models/find_model.h"
#include "app/models/get_model.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace keyhole {

namespace {

constexpr const char* kModelVariable = "KEYHOLE_MODEL";

/// Asks a person at the terminal. Anything but yes or an empty line is no.
bool asked(const CatalogModel& model) {
    print_note("Get {} ({})? [Y/n] ", model.name, terms_text(model));
    std::string answer;
    if (!std::getline(std::cin, answer)) {
        print_note("\n");
        return false;
    }
    return answer.empty() || answer == "y" || answer == "Y" || answer == "yes" || answer == "Yes";
}

std::filesystem::path get_if_wanted(const CatalogModel& model, bool yes) {
    if (!yes && (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0))
        fail(ErrorCode::wrong_use,
             "the model {0} is not here ({1}, from {2}); get it with: keyhole get {0}, or add --yes",
             model.name, terms_text(model), model.source);
    print_note("keyhole: {} is not here: {}; from {}\n", model.name, model.shows, model.source);
    if (!yes && !asked(model)) fail(ErrorCode::cancelled, "{} was not fetched", model.name);
    return get_with_progress(model);
}

}  // namespace

std::filesystem::path get_with_progress(const CatalogModel& model) {
    Progress progress("getting " + model.name, 1);
    return get_model(model, got_models_folder(), [&](double done) {
        progress.update(done);
        return true;
    });
}

static std::filesystem::path path_of(const FoundModel& found, const RunOptions& options) {
    return found.to_get == nullptr ? found.path : get_if_wanted(*found.to_get, options.says_yes());
}

/// Returns the model that the variable chooses; empty: none.
static std::string model_by_variable(const RunOptions& options) {
    const char* value = std::getenv(kModelVariable);
    return options.model.empty() && value != nullptr ? value : "";
}

void keep_chosen_model(const RunOptions& options) {
    if (const std::string model = model_by_variable(options); !model.empty())
        keep_option("--model", "-m", model);
}

std::filesystem::path model_path(const RunOptions& options) {
    remove_unfinished_gets(got_models_folder());
    keep_chosen_model(options);
    const std::string by_variable = model_by_variable(options);
    if (options.model.empty() && by_variable.empty()) {
        if (const std::string demo = demo_model_folder(); !demo.empty()) return demo;
        fail(ErrorCode::wrong_use,
             "no model: the demo model assets/models/keyhole-base is not here; give --model");
    }
    const std::vector<CatalogModel> catalog = own_catalog();
    const FoundModel found = [&] {
        if (by_variable.empty()) return find_model(options.model, catalog);
        try {
            return find_model(by_variable, catalog);
        } catch (const Error& error) {
            fail(error.code(), "{}={}: {}", kModelVariable, shown_text(by_variable), error.what());
        }
    }();
    return path_of(found, options);
}

std::filesystem::path catalog_model_path(const RunOptions& options) {
    remove_unfinished_gets(got_models_folder());
    const std::vector<CatalogModel> catalog = own_catalog();
    return path_of(find_catalog_model(options.model, catalog), options);
}

}  // namespace keyhole
