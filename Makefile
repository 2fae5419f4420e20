# Two commands are enough: `make run` and `make test`. Each sets up what is missing.
# KIND=cpu|cuda|spark|volta|vllm|plain chooses the machine for setup.sh; PROFILE=... the parameters of `make run`.

KIND ?= auto
PROFILE ?= auto
NOTEBOOK ?= notebooks/grpo_code_execution.ipynb
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # containers set it: then each of a run's processes compiles torch and transformers anew
READY := .venv/rlnb-set

NO_BENCH := $(addprefix benchmarks/,timing.py peers.py harnesses.py baselines_2048.py batch_2048.py \
    human_eval_problems.py)

# Arithmetic of other CPUs and numbers of threads; a setting that asks for more than this CPU has changes nothing.
CPUS := OMP_NUM_THREADS=1 OMP_NUM_THREADS=2 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX512_CORE \
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE
TESTS ?=

.DELETE_ON_ERROR:
.PHONY: help setup run coder test cpus lint lab gallery slow slurm test-gpu gpu-paths code seeds selfplay ppo bench baselines

help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile | expand -t 18

$(READY): setup.sh pyproject.toml $(wildcard requirements/*.txt)
	./setup.sh $(KIND)

setup: ## make or repair .venv and say what this machine has
	./setup.sh $(KIND)

run: $(READY) ## train: the first notebook at the profile that suits this machine; results in outputs/
	$(BIN)/rlnb run '$(NOTEBOOK)' --profile '$(PROFILE)'

coder: $(READY) ## train Qwen2.5-Coder-0.5B on MBPP: 45 minutes; without a hub MBPP_DATASET_PATH=FILE make coder MODEL=DIR
	$(BIN)/rlnb run notebooks/grpo_code_execution.ipynb --profile coder $(if $(MODEL),--set 'model.id=$(MODEL)')

test: lint ## all checks and quick tests, three notebooks' tiny runs among them
	$(BIN)/python -m pytest -m "not slow" -n logical --dist loadfile --no-loadscope-reorder

cpus: $(READY) ## the quick tests with the arithmetic of other CPUs, setting after setting; TESTS=tests/grpo for some
	@set -e; for setting in $(CPUS); do \
	    echo "== $$setting"; env $$setting $(BIN)/python -m pytest -m "not slow" $(TESTS); \
	done

lint: $(READY) ## style, types, Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rlnb
	$(BIN)/hadolint Dockerfile

slow: $(READY) ## the tests that take minutes each, all notebooks' tiny runs among them; half an hour together
	$(BIN)/python -m pytest -m slow

slurm: $(READY) ## jobs on a real SLURM, which it installs, starts and stops here: Debian, root; half an hour
	$(BIN)/python -m pytest tests/slurm/jobs.py

test-gpu: $(READY) ## every path of a training with tiny models, on a GPU machine: minutes; numbers in gpu.xml
	@status=0; \
	$(BIN)/python -m pytest -m gpu tests/gpu tests/policy --durations=0 --junitxml=gpu.xml || status=$$?; \
	if $(BIN)/python -c "import importlib.util as u; exit(not u.find_spec('unsloth'))"; then \
	    $(BIN)/python -m pytest tests/gpu_paths/unsloth_paths.py --junitxml=gpu-unsloth.xml || status=$$?; \
	fi; \
	exit $$status

gpu-paths: $(READY) ## the GPU code without a GPU: the real unsloth, 4 bits, the V100's versions; half an hour
	tests/gpu_paths/environment.sh unsloth .gpu_paths/unsloth
	tests/gpu_paths/environment.sh volta .gpu_paths/volta
	.gpu_paths/unsloth/bin/python -m pytest tests/gpu_paths/unsloth_paths.py
	.gpu_paths/unsloth/bin/python -m pytest -m gpu tests/gpu tests/policy
	.gpu_paths/volta/bin/python -m pytest -m "not slow" tests/policy tests/grpo tests/selfplay tests/ppo tests/spiral

lab: $(READY) ## JupyterLab in this folder, with the start page; its settings are in jupyter/
	JUPYTER_CONFIG_PATH=$(CURDIR)/jupyter $(BIN)/jupyter lab

gallery: $(READY) ## run the notebooks at their cpu profiles and keep the executed copies in docs/gallery/
	@mkdir -p docs/gallery
	$(BIN)/rlnb sweep notebooks/spiral_self_play.ipynb --profile kuhn --seeds 1-2 \
	    --sweep params/sweeps/spiral_advantages.yaml --out outputs/gallery/advantages
	@set -e; for name in grpo_code_execution grpo_code_game spiral_self_play gpt_oss_2048 \
	    ppo_openspiel mbpp_eval compare_runs; do \
	    rm -rf outputs/gallery/$$name; \
	    profile=cpu; [ -f params/$$name/cpu.yaml ] || profile=default; \
	    $(BIN)/rlnb run notebooks/$$name.ipynb --profile $$profile --out outputs/gallery/$$name \
	        $$([ $$name = compare_runs ] && echo "--set compare.directories=[outputs/gallery/advantages]"); \
	    sed 's|](\.\./|](../../|g' "$$(ls outputs/gallery/$$name/attempt-*.ipynb | sort -V | tail -n 1)" \
	        > docs/gallery/$$name.ipynb; \
	done

code: $(READY) ## what the embedded model learns about programs, ten seeds at both rewards: hours on two cores
	@set -e; for profile in cpu cpu_tests; do \
	    $(BIN)/rlnb sweep notebooks/grpo_code_execution.ipynb --profile $$profile --seeds 1-10 \
	        --set evaluation.num_prompts=1000 --set mbpp.enabled=false; \
	    $(BIN)/rlnb results outputs/grpo_code_execution/seeds-$$profile --gains; \
	done

seeds: $(READY) ## what the embedded model learns of 2048, five seeds: an hour on two cores
	$(BIN)/rlnb sweep notebooks/gpt_oss_2048.ipynb --profile cpu --seeds 0-4
	$(BIN)/rlnb results outputs/gpt_oss_2048/seeds-cpu --gains

ppo: $(READY) ## what PPO learns: a ladder of games from nothing, and SmolLM2 at tic-tac-toe; hours on two cores
	$(BIN)/rlnb sweep notebooks/ppo_openspiel.ipynb --profile cpu --seeds 1-3 --set evaluation.num_games=400
	$(BIN)/rlnb results outputs/ppo_openspiel/seeds-cpu --gains
	$(BIN)/rlnb sweep notebooks/ppo_openspiel.ipynb --profile embedded --seeds 1-2 \
	    --set 'evaluation.opponents=["random"]' --set evaluation.num_games=400
	$(BIN)/rlnb results outputs/ppo_openspiel/seeds-embedded --gains

selfplay: $(READY) ## what self-play learns: Kuhn, tic-tac-toe, Leduc, and the advantages; hours on two cores
	@set -e; for points in "kuhn 1-5" "cpu 1,2,42" "leduc 1,2,42"; do \
	    set -- $$points; \
	    $(BIN)/rlnb sweep notebooks/spiral_self_play.ipynb --profile $$1 --seeds $$2; \
	    $(BIN)/rlnb results outputs/spiral_self_play/seeds-$$1; \
	done
	$(BIN)/rlnb sweep notebooks/spiral_self_play.ipynb --profile cpu --seeds 1-5 \
	    --sweep params/sweeps/spiral_advantages.yaml --set training.max_steps=40 \
	    --set training.final_learning_rate=1.0e-4 --set training.final_entropy_coef=0.006
	$(BIN)/rlnb results outputs/spiral_self_play/spiral_advantages-cpu

bench: $(READY) ## side-by-side measurements against peers, one JSON line each
	@set -e; for benchmark in $(filter-out $(NO_BENCH),$(wildcard benchmarks/*.py)); do \
	    echo "== $$benchmark" >&2; $(BIN)/python $$benchmark --json; \
	done

baselines: $(READY) ## measure again what simple strategies reach at 2048, minutes; kept in benchmarks/baselines_2048.json
	$(BIN)/python benchmarks/baselines_2048.py
